"""Where the API server is and how a pod proves who it is.

https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubernetes_asyncio.client import Configuration

URL_VARIABLE: Final = "DELTAFENCE_KUBERNETES_API"
"""Outside a pod: an address at which the API needs no credentials, such as that of ``kubectl proxy``."""
NAMESPACE_VARIABLE: Final = "DELTAFENCE_NAMESPACE"
"""Beside it: the namespace that counts as our own."""
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class OutsideClusterError(Exception):
    """This process doesn't run in a pod with a service account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """One API server as one account sees it."""

    url: str
    """Origin, without a trailing slash."""
    namespace: str
    """The pod's own."""
    token_file: Path | None = None
    """Read again for each request: the kubelet replaces the token before it expires."""
    ca_file: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "ApiAccess":
        """By URL_VARIABLE where that is set, else as a pod. Raises OutsideClusterError."""
        url = environment.get(URL_VARIABLE)
        if url:
            return cls(url=url.rstrip("/"), namespace=environment.get(NAMESPACE_VARIABLE) or "default")
        return cls.in_cluster(environment)

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str], account: Path = ACCOUNT) -> "ApiAccess":
        """As the kubelet lays it out for every pod. Raises OutsideClusterError."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise OutsideClusterError("KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod")
        try:
            namespace = (account / "namespace").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise OutsideClusterError(f"no service account is mounted ({error}): set automountServiceAccountToken") from error
        literal = f"[{host}]" if ":" in host else host
        return cls(
            url=f"https://{literal}:{port}",
            namespace=namespace,
            token_file=account / "token",
            ca_file=account / "ca.crt",
        )

    def configuration(self) -> Configuration:
        """What kubernetes_asyncio needs to know. The token is read for each request."""
        configuration = Configuration(host=self.url, ssl_ca_cert=None if self.ca_file is None else str(self.ca_file))
        if self.token_file is not None:
            configuration.api_key["BearerToken"] = ""  # that there will be one; the hook has the last word
            configuration.refresh_api_key_hook = self._show_token
        return configuration

    def _show_token(self, configuration: Configuration) -> None:
        assert self.token_file is not None
        configuration.api_key["BearerToken"] = f"Bearer {self.token_file.read_text(encoding='utf-8').strip()}"

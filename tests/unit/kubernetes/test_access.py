"""How a pod reaches its API server."""

from pathlib import Path

import pytest

from extproc.kubernetes.access import ApiAccess, OutsideClusterError

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "namespace").write_text("llm\n")
    (tmp_path / "token").write_text("secret\n")
    return tmp_path


async def test_a_pod_is_told_everything(account: Path) -> None:
    access = ApiAccess.in_cluster(POD, account)
    assert (access.url, access.namespace) == ("https://10.0.0.1:443", "llm")
    assert await shown_token(access) == "Bearer secret"


async def test_a_replaced_token_is_used_at_once(account: Path) -> None:
    access = ApiAccess.in_cluster(POD, account)
    (account / "token").write_text("newer")
    assert await shown_token(access) == "Bearer newer"


def test_ipv6_gets_its_brackets(account: Path) -> None:
    assert ApiAccess.in_cluster({**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account).url == "https://[fd00::1]:443"


def test_outside_a_pod_a_proxy_may_be_named() -> None:
    access = ApiAccess.from_environment({"DELTAFENCE_KUBERNETES_API": "http://127.0.0.1:8001/", "DELTAFENCE_NAMESPACE": "llm"})
    assert (access.url, access.namespace, access.token_file) == ("http://127.0.0.1:8001", "llm", None)
    assert ApiAccess.from_environment({"DELTAFENCE_KUBERNETES_API": "http://a"}).namespace == "default"
    with pytest.raises(OutsideClusterError):
        ApiAccess.from_environment({})


def test_outside_a_pod_the_reason_is_said(account: Path) -> None:
    with pytest.raises(OutsideClusterError, match="KUBERNETES_SERVICE_HOST"):
        ApiAccess.in_cluster({}, account)
    with pytest.raises(OutsideClusterError, match="automountServiceAccountToken"):
        ApiAccess.in_cluster(POD, account / "absent")


async def test_https_is_verified_with_the_clusters_authority(tmp_path: Path) -> None:
    configuration = ApiAccess(url="https://a", namespace="", ca_file=tmp_path / "ca.crt").configuration()
    assert (configuration.ssl_ca_cert, configuration.verify_ssl) == (str(tmp_path / "ca.crt"), True)
    assert await shown_token(ApiAccess(url="http://a", namespace="")) is None


async def shown_token(access: ApiAccess) -> str | None:
    """What a request would show now."""
    token: str | None = await access.configuration().get_api_key_with_prefix("BearerToken")
    return token

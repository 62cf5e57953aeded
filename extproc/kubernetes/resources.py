"""Which objects are meant: the paths of the API's collections (kubernetes.io/docs/reference/using-api/api-concepts)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Object = Mapping[str, Any]
"""One API object, as JSON."""


class Name(NamedTuple):
    """An object's name within its collection."""

    namespace: str
    name: str

    @classmethod
    def of(cls, found: Object) -> "Name":
        metadata = found["metadata"]
        return cls(metadata.get("namespace", ""), metadata["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """One kind of objects, in one namespace or in all."""

    kind: str
    group: str
    """Empty for the core group."""
    version: str
    plural: str
    namespace: str | None = None
    label_selector: str = ""

    @property
    def path(self) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{self.namespace}/{self.plural}" if self.namespace else f"{root}/{self.plural}"

    def __str__(self) -> str:
        return f"{self.plural}{f'.{self.group}' if self.group else ''} in {self.namespace or 'all namespaces'}"


GATEWAY_GROUP: Final = "gateway.networking.k8s.io"
ISTIO_GROUP: Final = "networking.istio.io"


def route_collections(namespace: str | None = None) -> tuple[Collection, ...]:
    """The kinds whose annotations hold policies."""
    return (
        Collection(kind="HTTPRoute", group=GATEWAY_GROUP, version="v1", plural="httproutes", namespace=namespace),
        Collection(kind="GRPCRoute", group=GATEWAY_GROUP, version="v1", plural="grpcroutes", namespace=namespace),
        Collection(kind="VirtualService", group=ISTIO_GROUP, version="v1", plural="virtualservices", namespace=namespace),
    )


def pods(namespace: str, label: str) -> Collection:
    """The pods that carry a label, whatever its value."""
    return Collection(kind="Pod", group="", version="v1", plural="pods", namespace=namespace, label_selector=label)


def endpoint_slices(namespace: str, service: str) -> Collection:
    """The slices of one Service."""
    return Collection(
        kind="EndpointSlice",
        group="discovery.k8s.io",
        version="v1",
        plural="endpointslices",
        namespace=namespace,
        label_selector=f"kubernetes.io/service-name={service}",
    )

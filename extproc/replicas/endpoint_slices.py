"""EndpointSlices into members (kubernetes.io/docs/concepts/services-networking/endpoint-slices).

A Service has several slices: one for each address family, and more where it is large. While slices are rewritten an endpoint may
stand in two of them. So endpoints are joined by pod: one address for each pod, IPv4 before IPv6, and a pod counts as leaving as
soon as one slice says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from extproc.replicas.membership import Member
from extproc.replicas.roster import Replica

FAMILIES: Final = ("IPv4", "IPv6")
"""In order of preference; ``FQDN`` slices hold names, which are DNS discovery's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    """One pod in one slice."""

    family: str
    address: str
    port: int
    uid: str
    withheld: bool


def members_of(slices: Iterable[Mapping[str, Any]], *, port: str) -> tuple[Member, ...]:
    """The members behind the port of that name or number, in a stable order. What makes no sense in a slice is left out."""
    by_pod: dict[str, list[_Endpoint]] = {}
    for found in slices:
        for endpoint in _endpoints(found, port):
            by_pod.setdefault(endpoint.uid, []).append(endpoint)
    return tuple(sorted((_member(same) for same in by_pod.values()), key=lambda member: member.replica.destination))


def _member(same: Sequence[_Endpoint]) -> Member:
    best = min(same, key=lambda endpoint: (FAMILIES.index(endpoint.family), endpoint.address))
    literal = f"[{best.address}]" if best.family == "IPv6" else best.address
    destination = f"{literal}:{best.port}"
    return Member(
        replica=Replica(destination=destination, url=f"http://{destination}"),
        withheld=any(endpoint.withheld for endpoint in same),
        incarnation=best.uid,
    )


def _endpoints(found: Mapping[str, Any], port: str) -> Iterable[_Endpoint]:
    family = found.get("addressType")
    number = _port_number(found.get("ports") or (), port)
    if family not in FAMILIES or number is None:
        return
    for endpoint in found.get("endpoints") or ():
        addresses = endpoint.get("addresses") or ()
        if addresses:
            # The addresses of one endpoint are interchangeable, and more than one is deprecated: the first will do.
            yield _Endpoint(
                family=str(family),
                address=str(addresses[0]),
                port=number,
                uid=str((endpoint.get("targetRef") or {}).get("uid") or addresses[0]),
                withheld=not _takes_new(endpoint.get("conditions") or {}),
            )


def _takes_new(conditions: Mapping[str, Any]) -> bool:
    """``ready`` counts as true where it is not said; a Service may publish terminating pods as ready, so both are asked."""
    return conditions.get("ready") is not False and not conditions.get("terminating")


def _port_number(ports: Iterable[Mapping[str, Any]], wanted: str) -> int | None:
    for port in ports:
        if wanted in (port.get("name"), str(port.get("port"))) and port.get("port"):
            return int(port["port"])
    return None

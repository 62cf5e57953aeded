"""EndpointSlices into members (CASES K8-06)."""

from typing import Any

import pytest

from extproc.replicas.endpoint_slices import members_of

PORTS = [{"name": "metrics", "port": 9090}, {"name": "http", "port": 8000}]


def endpoint(address: str, uid: str | None = None, **conditions: bool | None) -> dict[str, Any]:
    made: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    if uid is not None:
        made["targetRef"] = {"kind": "Pod", "uid": uid}
    return made


def slice_of(*endpoints: dict[str, Any], family: str = "IPv4", ports: Any = PORTS) -> dict[str, Any]:
    return {"addressType": family, "endpoints": list(endpoints), "ports": ports}


def seen(*slices: dict[str, Any], port: str = "http") -> list[tuple[str, bool]]:
    return [(member.replica.destination, member.withheld) for member in members_of(slices, port=port)]


@pytest.mark.parametrize(
    ("conditions", "withheld"),
    [
        ({"ready": True, "serving": True, "terminating": False}, False),
        ({}, False),
        ({"ready": None}, False),
        ({"ready": False, "serving": False, "terminating": False}, True),
        ({"ready": False, "serving": True, "terminating": True}, True),
        ({"ready": True, "serving": True, "terminating": True}, True),
    ],
)
def test_a_pod_that_leaves_or_has_not_come_gets_no_new_attempt(conditions: dict[str, bool | None], withheld: bool) -> None:
    assert seen(slice_of(endpoint("10.0.0.1", "u", **conditions))) == [("10.0.0.1:8000", withheld)]


@pytest.mark.parametrize(("port", "number"), [("http", 8000), ("8000", 8000), ("metrics", 9090)])
def test_the_port_is_found_by_name_or_number(port: str, number: int) -> None:
    assert seen(slice_of(endpoint("10.0.0.1", "u")), port=port) == [(f"10.0.0.1:{number}", False)]


@pytest.mark.parametrize(
    "found",
    [
        slice_of(endpoint("10.0.0.1"), ports=[{"name": "other", "port": 1}]),
        slice_of(endpoint("10.0.0.1"), ports=[{"name": "http"}]),
        slice_of(endpoint("10.0.0.1"), ports=None),
        slice_of(endpoint("a.example"), family="FQDN"),
        slice_of({"addresses": []}),
        {"addressType": "IPv4", "ports": PORTS},
    ],
)
def test_what_makes_no_sense_is_left_out(found: dict[str, Any]) -> None:
    assert seen(found) == []


def test_a_dual_stack_pod_is_one_member() -> None:
    v6 = slice_of(endpoint("fd00::1", "u"), endpoint("fd00::2", "v"), family="IPv6")
    assert seen(v6, slice_of(endpoint("10.0.0.1", "u"))) == [("10.0.0.1:8000", False), ("[fd00::2]:8000", False)]


def test_a_pod_in_two_slices_leaves_as_soon_as_one_says_so() -> None:
    assert seen(slice_of(endpoint("10.0.0.1", "u")), slice_of(endpoint("10.0.0.1", "u", ready=False, terminating=True))) == [
        ("10.0.0.1:8000", True)
    ]


def test_members_come_in_a_stable_order() -> None:
    one, two = endpoint("10.0.0.1", "u"), endpoint("10.0.0.2", "v")
    assert members_of([slice_of(one, two)], port="http") == members_of([slice_of(two, one)], port="http")

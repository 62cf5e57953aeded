"""The pods behind a Service: what they declare, and from whom their end is believed (R5, R8)."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from extproc.replicas.membership import Member
from extproc.replicas.roster import Replica
from extproc.replicas.service_membership import ServiceMembership, processes_ended

TERMINATED = {"state": {"terminated": {"exitCode": 0}}}
RUNNING = {"state": {"running": {}}}


class Told:
    """A membership and what it told."""

    def __init__(self) -> None:
        self.members: list[Sequence[Member]] = []
        self.ended: list[str] = []
        self.membership = ServiceMembership("8000", self.members.append, self._end)

    def _end(self, replica: Replica) -> None:
        self.ended.append(replica.destination)

    def slices(self, *uids: str) -> None:
        endpoints = [{"addresses": [f"10.0.0.{uid}"], "targetRef": {"uid": uid}} for uid in uids]
        found = {"addressType": "IPv4", "ports": [{"port": 8000}], "endpoints": endpoints}
        self.membership.take_slices({"one": found})

    def pods(self, **pods: Mapping[str, Any]) -> None:
        self.membership.take_pods(
            {uid: {**pod, "metadata": {"uid": uid.lstrip("_"), **pod.get("metadata", {})}} for uid, pod in pods.items()}
        )

    @property
    def now(self) -> list[tuple[str, str, bool]]:
        return [
            (member.replica.destination, member.replica.declared.identity.key, member.withheld) for member in self.members[-1]
        ]


def ending(*containers: Mapping[str, Any], **metadata: str) -> dict[str, Any]:
    return {
        "metadata": {"deletionTimestamp": "2026-11-30T00:00:00Z", **metadata},
        "status": {"containerStatuses": list(containers)},
    }


def test_a_pods_declared_facts_go_with_it() -> None:
    told = Told()
    told.slices("1", "2")
    told.pods(_1={"metadata": {"labels": {"deltafence.io/revision": "a"}, "annotations": {"deltafence.io/tokenizer": "t"}}})
    assert told.now == [("10.0.0.1:8000", '{"revision":"a","tokenizer":"t"}', False), ("10.0.0.2:8000", "", False)]


def test_facts_that_can_not_be_read_keep_a_pod_without_attempts(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    bad = {"metadata": {"name": "vllm-1", "annotations": {"deltafence.io/tensor-parallel-size": "two"}}}
    told.pods(_1=bad)
    told.slices("1")
    told.pods(_1=bad, _2={})
    assert told.now == [("10.0.0.1:8000", "", True)]
    assert caplog.text.count("pod vllm-1 gets no new attempts") == 1
    told.pods(_1={"metadata": {"annotations": {"deltafence.io/tensor-parallel-size": "2"}}})
    assert told.now == [("10.0.0.1:8000", "", False)]


def test_members_are_told_only_when_they_changed() -> None:
    told = Told()
    told.slices("1")
    told.slices("1")
    told.pods(_1={})
    assert len(told.members) == 1


@pytest.mark.parametrize(
    ("pod", "ended"),
    [
        ({}, False),
        (ending(TERMINATED), True),
        (ending(TERMINATED, RUNNING), False),
        (ending(), False),
        ({"metadata": {"deletionTimestamp": "x"}}, False),
        ({"status": {"phase": "Running", "containerStatuses": [TERMINATED]}}, False),
        ({"status": {"phase": "Failed", "containerStatuses": [TERMINATED]}}, True),
        ({"status": {"phase": "Failed"}}, False),
        ({"status": {"phase": "Succeeded", "containerStatuses": [TERMINATED], "initContainerStatuses": [RUNNING]}}, False),
    ],
)
def test_an_end_is_believed_only_from_the_kubelet(pod: dict[str, Any], ended: bool) -> None:
    """A container that terminated is started again while its pod lives; a pod that a node took along was never reported."""
    assert processes_ended(pod) is ended


def test_an_end_is_told_once() -> None:
    told = Told()
    told.slices("1", "2")
    told.pods(_1={}, _2={})
    told.pods(_1=ending(TERMINATED), _2={})
    told.slices("1", "2")
    told.pods(_1=ending(TERMINATED), _2={})
    assert told.ended == ["10.0.0.1:8000"]


def test_a_pod_that_left_its_slice_is_still_heard_of() -> None:
    told = Told()
    told.slices("1")
    told.pods(_1={})
    told.slices()
    told.pods(_1=ending(RUNNING))
    assert told.ended == []
    told.pods(_1=ending(TERMINATED))
    assert told.ended == ["10.0.0.1:8000"]


def test_an_object_that_went_without_the_kubelets_word_proves_nothing() -> None:
    told = Told()
    told.slices("1")
    told.pods(_1={})
    told.slices()
    told.pods()
    assert told.ended == []
    assert told.membership._replicas == {}

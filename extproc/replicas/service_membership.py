"""The replicas behind a Service: addresses and readiness from its EndpointSlices, facts and endings from its pods.

A pod declares what model it serves by ``deltafence.io/…`` labels and annotations (decision/identity.py); what can't be read is
an error that keeps the pod without new attempts, never a guess. A pod that leaves a slice may live on (a changed label does
that), and a pod object may go while its processes run on (a forced deletion, a lost node). So an ending is believed only from
the kubelet: the pod is to be deleted or has a final phase, and every one of its containers has terminated.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from extproc.decision.identity import read_declared
from extproc.replicas.endpoint_slices import members_of
from extproc.replicas.membership import Member, Membership
from extproc.replicas.roster import Replica

FINAL_PHASES: Final = ("Succeeded", "Failed")
DECLARING_LABEL: Final = "deltafence.io/replica"
"""Pods with this label, whatever its value, are read."""

LOGGER: Final = logging.getLogger("deltafence.discovery")

Ended = Callable[[Replica], None]
"""Told once that every process behind a replica has ended. Must not raise."""


class ServiceMembership:
    """Told pictures of slices and pods in any order; tells members and endings. Does no I/O."""

    def __init__(self, port: str, become: Membership, ended: Ended) -> None:
        self._port: Final = port
        self._become: Final = become
        self._ended: Final = ended
        self._slices: tuple[Mapping[str, Any], ...] = ()
        self._pods: Mapping[str, Mapping[str, Any]] = {}
        self._replicas: dict[str, Replica] = {}
        """By pod UID, until the pod's end was told or it is known to nobody."""
        self._told: tuple[Member, ...] | None = None
        self._refused: dict[str, str] = {}

    def take_slices(self, picture: Mapping[Any, Mapping[str, Any]]) -> None:
        """A new picture of the Service's slices."""
        self._slices = tuple(picture.values())
        self._tell()

    def take_pods(self, picture: Mapping[Any, Mapping[str, Any]]) -> None:
        """A new picture of the pods that declare something."""
        self._pods = {str(pod["metadata"].get("uid")): pod for pod in picture.values()}
        self._tell()
        for uid, pod in self._pods.items():
            if uid in self._replicas and processes_ended(pod):
                self._ended(self._replicas.pop(uid))

    def _tell(self) -> None:
        members = tuple(self._declared(member) for member in members_of(self._slices, port=self._port))
        present = {member.incarnation for member in members} | self._pods.keys()
        self._replicas = {uid: replica for uid, replica in self._replicas.items() if uid in present}
        for member in members:
            if not processes_ended(self._pods.get(member.incarnation, {})):
                self._replicas[member.incarnation] = member.replica
        if members != self._told:
            self._told = members
            self._become(members)

    def _declared(self, member: Member) -> Member:
        metadata = self._pods.get(member.incarnation, {}).get("metadata", {})
        try:
            facts = read_declared({**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})})
        except ValueError as error:
            if self._refused.get(member.incarnation) != str(error):
                self._refused[member.incarnation] = str(error)
                LOGGER.error("pod %s gets no new attempts: %s", metadata.get("name"), error)
            return replace(member, withheld=True)
        return replace(member, replica=replace(member.replica, declared=facts))


def processes_ended(pod: Mapping[str, Any]) -> bool:
    """Whether the kubelet says that no process of this pod runs or will run again."""
    status = pod.get("status") or {}
    if "deletionTimestamp" not in pod.get("metadata", {}) and status.get("phase") not in FINAL_PHASES:
        return False
    containers = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return bool(containers) and all("terminated" in (container.get("state") or {}) for container in containers)

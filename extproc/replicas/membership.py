"""Which replicas there are, as discovery sees them: members, and those of them that get no new attempt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from extproc.replicas.roster import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One replica in discovery's newest picture."""

    replica: Replica
    withheld: bool = False
    """Terminating, or not ready yet: its running attempts stay, new ones go elsewhere."""
    incarnation: str = ""
    """What is different when another server took over the address: a pod's UID."""


Membership = Callable[[Sequence[Member]], None]
"""Told the whole picture after each change of it. Must not raise."""

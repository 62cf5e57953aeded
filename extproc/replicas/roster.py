"""Which replicas there are, how busy each is, and which one gets the next attempt.

One roster per processor process; nothing in it is shared between processes, so "busy" means the attempts of this process.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from extproc.decision.identity import Facts

NOTHING_DECLARED: Final = Facts()


class Standing(StrEnum):
    """Whether a replica may get a new attempt; set by health and discovery, never by one request's failure."""

    PLACEABLE = "placeable"
    LAST_RESORT = "last_resort"
    """Suspect: only where no other replica is left."""
    WITHHELD = "withheld"
    """Hung, dead, starting, unknown or terminating: running attempts stay, new ones go elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One server of a model.

    ``destination`` is the ``ip:port`` by which Envoy knows it (override_host matches addresses, not names); ``url`` is
    where its control endpoints are asked, without a trailing slash; ``declared`` is what its operator says of its model.
    """

    destination: str
    url: str
    declared: Facts = NOTHING_DECLARED
    identity: str = field(default="", compare=False)
    """What must be equal for a repeat (R8); the roster's word, since it is learnt while the replica is known."""


class RosterListener(Protocol):
    """Told by the roster what changes in it, from the event loop. Must not wait or raise."""

    def replicas_changed(self, replicas: tuple[Replica, ...]) -> None:
        """Who there is now."""

    def attempt_placed(self, replica: Replica) -> None:
        """An attempt starts there."""


class Roster:
    """The replicas of one processor.

    Invariant: ``_running`` holds the number of unreleased ``acquire`` calls of each replica and never goes below zero.
    """

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self._replicas: dict[str, Replica] = {replica.destination: replica for replica in replicas}
        self._standing: dict[str, Standing] = dict.fromkeys(self._replicas, Standing.PLACEABLE)
        self._running: dict[str, int] = dict.fromkeys(self._replicas, 0)
        self._withheld: frozenset[str] = frozenset()
        self._doubted: set[str] = set()
        """Of which an attempt was lost since health has looked last."""
        self._turn = 0
        self._listeners: list[RosterListener] = []

    def subscribe(self, listener: RosterListener) -> None:
        """Tell ``listener`` who there is, now and whenever it changes."""
        self._listeners.append(listener)
        listener.replicas_changed(self.replicas)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All known replicas, placeable or not."""
        return tuple(self._replicas.values())

    def running(self, destination: str) -> int:
        """Attempts of this process on a replica."""
        return self._running.get(destination, 0)

    def standing(self, destination: str) -> Standing:
        """Whether a replica may get a new attempt; an unknown one may not."""
        return self._standing.get(destination, Standing.WITHHELD)

    def become(self, replicas: Iterable[Replica], withheld: Collection[str] = ()) -> None:
        """Discovery's newest picture: who there is, and which destinations of them get no new attempt.

        Apart from standings, which are health's word: a replica gets attempts where both allow it. Running attempts stay counted,
        those on replicas that are gone included; what is still known keeps its standing, what is new is placeable.
        """
        before, self._replicas = self._replicas, {}
        for replica in replicas:
            known = before.get(replica.destination)
            self._replicas[replica.destination] = known if known is not None and known == replica else replica
        self._standing = {known: self._standing.get(known, Standing.PLACEABLE) for known in self._replicas}
        self._withheld = frozenset(withheld)
        self._doubted &= self._replicas.keys()
        kept = {destination: running for destination, running in self._running.items() if running}
        self._running = {**dict.fromkeys(self._replicas, 0), **kept}
        for listener in self._listeners:
            listener.replicas_changed(self.replicas)

    def set_identity(self, destination: str, identity: str) -> None:
        """Say what must be equal for a repeat. Stays while the replica is known and declares the same."""
        known = self._replicas.get(destination)
        if known is not None:
            self._replicas[destination] = replace(known, identity=identity)

    def identity(self, destination: str) -> str | None:
        """What must be equal for a repeat, as it is known now; None for a replica that has left."""
        known = self._replicas.get(destination)
        return None if known is None else known.identity

    def set_standing(self, destination: str, standing: Standing) -> None:
        """Say, having looked, whether a replica may get new attempts. Unknown ones are ignored: they may just have left."""
        if destination in self._replicas:
            self._standing[destination] = standing
            self._doubted.discard(destination)

    def doubt(self, destination: str) -> None:
        """An attempt was lost there: until somebody has looked, it gets new ones only where no other replica is left."""
        if destination in self._replicas:
            self._doubted.add(destination)

    def is_doubted(self, destination: str) -> bool:
        """Whether an attempt was lost there since its standing was said last."""
        return destination in self._doubted

    def choose(self, failed_on: Collection[str] = (), identity: str | None = None) -> Replica | None:
        """The least busy placeable replica of the identity that this request has not failed on, or None.

        One in doubt comes after all that are not, whatever their standing. Among equals the turn goes round, so that an idle pool
        is used evenly.
        """
        possible = [
            replica
            for replica in self._replicas.values()
            if replica.destination not in self._withheld
            and replica.destination not in failed_on
            and identity in (None, replica.identity)
        ]
        trusted = [replica for replica in possible if replica.destination not in self._doubted]
        candidates = self._best_standing(trusted) or self._best_standing(possible)
        if not candidates:
            return None
        least = min(self._running[replica.destination] for replica in candidates)
        equals = [replica for replica in candidates if self._running[replica.destination] == least]
        self._turn += 1
        return equals[self._turn % len(equals)]

    def acquire(self, replica: Replica) -> None:
        """An attempt starts there."""
        self._running[replica.destination] = self._running.get(replica.destination, 0) + 1
        for listener in self._listeners:
            listener.attempt_placed(replica)

    def release(self, replica: Replica) -> None:
        """An attempt there has ended. Exactly once for each ``acquire``."""
        left = self._running[replica.destination] - 1
        assert left >= 0, f"{replica.destination} was released more often than acquired"
        self._running[replica.destination] = left

    def _best_standing(self, replicas: Sequence[Replica]) -> list[Replica]:
        return self._of_standing(replicas, Standing.PLACEABLE) or self._of_standing(replicas, Standing.LAST_RESORT)

    def _of_standing(self, replicas: Sequence[Replica], standing: Standing) -> list[Replica]:
        return [replica for replica in replicas if self._standing[replica.destination] is standing]

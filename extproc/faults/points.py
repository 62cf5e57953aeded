"""What can be broken: the catalogue of fault points, in an order that follows from a seed.

A point is a kind of fault at a place between "request sent" and "last byte", of one API, streamed or not, on a request's first
attempt or on its repeat. Two points differ in at least one of these, so their number is the number of different situations.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from fnmatch import fnmatchcase
from random import Random
from typing import Final

from extproc.sim.faults import NOT_STREAMING, What, Where
from extproc.sse.dialects import Dialect

TOKENS: Final = 4
"""Text tokens of every answer: a first, a last, and some between."""


class Scope(StrEnum):
    """What a fault takes away, which says how many points can be broken together."""

    REQUEST = auto()
    """One request's answer: the replica does it by itself, at the place."""
    CLIENT = auto()
    REPLICA = auto()
    """A whole replica, or the way to it: requests are held at their places until then."""
    GATEWAY = auto()
    """Envoy, the processor, or the journal: likewise."""


class Setting(StrEnum):
    """Which stage a kind needs."""

    PATIENT = auto()
    """Leases longer than any round, replicas reached directly: nothing is lost by time alone."""
    CUTTABLE = auto()
    """Short leases, and a link to each replica that can go silent."""
    WATCHFUL = auto()
    """Health that calls a replica hung within seconds."""


class Kind(StrEnum):
    """What happens at the place."""

    NOTHING = auto()
    SLOW = auto()
    RESET = auto()
    CLOSED = auto()
    MALFORMED = auto()
    EOF = auto()
    DONE_ONLY = auto()
    ERROR_EVENT = auto()
    ABORT = auto()
    GARBAGE = auto()
    HTTP_400 = auto()
    HTTP_429 = auto()
    HTTP_500 = auto()
    HTTP_503 = auto()
    CLIENT_CLOSED = auto()
    CLIENT_RESET = auto()
    KILLED = auto()
    ENGINE_KILLED = auto()
    ENGINE_HUNG = auto()
    TERMINATED = auto()
    """SIGTERM, as in a rollout: requests end with the finish reason ``abort``."""
    STOPPED = auto()
    """SIGSTOP: connections stay open, nothing answers; it is let go on afterwards, with old leases."""
    CUT_BOTH = auto()
    CUT_FROM_REPLICA = auto()
    CUT_TO_REPLICA = auto()
    FENCE_WAIT_CLIENT_CLOSED = auto()
    """The connection broke, and the cancel can't reach the replica; while that is waited for, the client leaves."""
    FENCE_WAIT_HEALED = auto()
    """... the cancel comes through after all."""
    FENCE_WAIT_KILLED = auto()
    """... the replica is killed."""
    PROCESSOR_KILLED = auto()
    PROCESSOR_DRAINED = auto()
    """SIGTERM with a drain limit of 0: everything that runs is ended in words."""
    ENVOY_KILLED = auto()
    JOURNAL_LOST = auto()
    """The journal's file can't be written while requests go on."""
    TOOL_KILLED = auto()
    """The tool acts and dies before it answers; then the attempt that called it breaks too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """How a kind is brought about. ``what``: the replica's own act, for the scope REQUEST."""

    scope: Scope
    what: What | None = None
    status: int | None = None
    setting: Setting = Setting.PATIENT
    attempts: tuple[int, ...] = (1,)
    """Which attempts of a request are broken so."""
    inside: bool = True
    """Whether it can happen in the middle of an event."""
    only_before_headers: bool = False


_BOTH: Final = (1, 2)
KINDS: Final[dict[Kind, KindRow]] = {
    Kind.NOTHING: KindRow(scope=Scope.REQUEST, inside=False),
    Kind.SLOW: KindRow(scope=Scope.REQUEST, what=What.SLOW, inside=False),
    Kind.RESET: KindRow(scope=Scope.REQUEST, what=What.RESET, attempts=_BOTH),
    Kind.CLOSED: KindRow(scope=Scope.REQUEST, what=What.CLOSE),
    Kind.MALFORMED: KindRow(scope=Scope.REQUEST, what=What.MALFORMED),
    Kind.EOF: KindRow(scope=Scope.REQUEST, what=What.EOF, attempts=_BOTH),
    Kind.DONE_ONLY: KindRow(scope=Scope.REQUEST, what=What.DONE, inside=False),
    Kind.ERROR_EVENT: KindRow(scope=Scope.REQUEST, what=What.ERROR_EVENT, inside=False, attempts=_BOTH),
    Kind.ABORT: KindRow(scope=Scope.REQUEST, what=What.ABORT, inside=False),
    Kind.GARBAGE: KindRow(scope=Scope.REQUEST, what=What.GARBAGE),
    Kind.HTTP_400: KindRow(scope=Scope.REQUEST, what=What.HTTP_ERROR, status=400, only_before_headers=True, attempts=_BOTH),
    Kind.HTTP_429: KindRow(scope=Scope.REQUEST, what=What.HTTP_ERROR, status=429, only_before_headers=True, attempts=_BOTH),
    Kind.HTTP_500: KindRow(scope=Scope.REQUEST, what=What.HTTP_ERROR, status=500, only_before_headers=True, attempts=_BOTH),
    Kind.HTTP_503: KindRow(scope=Scope.REQUEST, what=What.HTTP_ERROR, status=503, only_before_headers=True, attempts=_BOTH),
    Kind.CLIENT_CLOSED: KindRow(scope=Scope.CLIENT, attempts=_BOTH),
    Kind.CLIENT_RESET: KindRow(scope=Scope.CLIENT),
    Kind.KILLED: KindRow(scope=Scope.REPLICA),
    Kind.ENGINE_KILLED: KindRow(scope=Scope.REPLICA, inside=False),
    Kind.ENGINE_HUNG: KindRow(scope=Scope.REPLICA, setting=Setting.WATCHFUL),
    Kind.TERMINATED: KindRow(scope=Scope.REPLICA, inside=False),
    Kind.STOPPED: KindRow(scope=Scope.REPLICA, setting=Setting.CUTTABLE),
    Kind.CUT_BOTH: KindRow(scope=Scope.REPLICA, setting=Setting.CUTTABLE),
    Kind.CUT_FROM_REPLICA: KindRow(scope=Scope.REPLICA, setting=Setting.CUTTABLE),
    Kind.CUT_TO_REPLICA: KindRow(scope=Scope.REPLICA, setting=Setting.CUTTABLE),
    Kind.FENCE_WAIT_CLIENT_CLOSED: KindRow(scope=Scope.REPLICA, what=What.RESET, setting=Setting.CUTTABLE),
    Kind.FENCE_WAIT_HEALED: KindRow(scope=Scope.REPLICA, what=What.RESET, setting=Setting.CUTTABLE),
    Kind.FENCE_WAIT_KILLED: KindRow(scope=Scope.REPLICA, what=What.RESET, setting=Setting.CUTTABLE),
    Kind.PROCESSOR_KILLED: KindRow(scope=Scope.GATEWAY),
    Kind.PROCESSOR_DRAINED: KindRow(scope=Scope.GATEWAY),
    Kind.ENVOY_KILLED: KindRow(scope=Scope.GATEWAY),
    Kind.JOURNAL_LOST: KindRow(scope=Scope.GATEWAY, inside=False),
    Kind.TOOL_KILLED: KindRow(scope=Scope.REQUEST, what=What.RESET),
}
"""Every kind and how it is brought about; ``catalogue`` knows no other source."""
assert set(KINDS) == set(Kind)


class Position(StrEnum):
    """Where a place stands to what a client can have received by then."""

    BEFORE_BOUNDARY = auto()
    AFTER_BOUNDARY = auto()
    AFTER_FINISH = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place of the look-alike's, with the number of deltas where that counts."""

    where: Where
    deltas: int | None = None

    def __str__(self) -> str:
        return str(self.where) if self.deltas is None else f"{self.where}-{self.deltas}"

    def position(self, *, stream: bool) -> Position:
        """An answer that is not streamed is held whole, so all its places are before the boundary."""
        if not stream:
            return Position.BEFORE_BOUNDARY
        if self.where in (Where.AFTER_FINISH, Where.AFTER_DONE):
            return Position.AFTER_FINISH
        return Position.AFTER_BOUNDARY if self.deltas_sent else Position.BEFORE_BOUNDARY

    @property
    def deltas_sent(self) -> int:
        """How many deltas of a stream are on the wire here."""
        match self.where:
            case Where.MID_DECODE | Where.AFTER_TOKEN_COMPUTED | Where.INSIDE_EVENT:
                return self.deltas or 0
            case Where.BEFORE_FINISH | Where.AFTER_FINISH | Where.AFTER_DONE:
                return TOKENS
            case _:
                return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One fault point."""

    kind: Kind
    api: Dialect
    stream: bool
    place: Place
    attempt: int = 1

    @property
    def key(self) -> str:
        """Its name: ``kind.api.form.place.attempt``; fit for file names, header values and globs."""
        return ".".join((self.kind, self.api, "stream" if self.stream else "whole", str(self.place), str(self.attempt)))

    @property
    def row(self) -> KindRow:
        return KINDS[self.kind]

    @property
    def position(self) -> Position:
        return self.place.position(stream=self.stream)

    @property
    def calls_tool(self) -> bool:
        """Whether the request makes the replica call a tool in the middle (R17.5)."""
        return self.place.where is Where.AFTER_TOOL


def catalogue() -> tuple[Point, ...]:
    """Every point there is."""
    return tuple(
        Point(kind=kind, api=api, stream=stream, place=place, attempt=attempt)
        for kind, row in KINDS.items()
        for attempt in row.attempts
        for api in Dialect
        for stream in (True, False)
        for place in _places(stream=stream)
        if _is_sensible(kind, row, api, place, stream=stream)
    )


def in_order(points: Iterable[Point], seed: int) -> list[Point]:
    """The order of a run: the same for the same seed and points."""
    ordered = sorted(points, key=lambda point: point.key)
    Random(seed).shuffle(ordered)  # noqa: S311  (an order, not a secret)
    return ordered


def select(points: Iterable[Point], globs: Iterable[str]) -> list[Point]:
    """Those whose key matches one of the globs; all where there are none."""
    wanted = tuple(globs)
    return [point for point in points if not wanted or any(fnmatchcase(point.key, glob) for glob in wanted)]


def point_of(key: str) -> Point:
    """The point with this key. Raises LookupError."""
    for point in catalogue():
        if point.key == key:
            return point
    raise LookupError(f"no fault point {key!r}")


def _places(*, stream: bool) -> Iterator[Place]:
    yield from (Place(where=where) for where in (Where.BEFORE_HEADERS, Where.IN_PREFILL, Where.AFTER_TOOL, Where.AFTER_HEADERS))
    yield from (Place(where=Where.AFTER_TOKEN_COMPUTED, deltas=number) for number in range(TOKENS))
    if not stream:
        yield Place(where=Where.MID_BODY)
        return
    yield Place(where=Where.AFTER_ROLE)
    yield from (Place(where=Where.INSIDE_EVENT, deltas=number) for number in range(TOKENS))
    yield from (Place(where=Where.MID_DECODE, deltas=number) for number in range(1, TOKENS + 1))
    yield from (Place(where=where) for where in (Where.BEFORE_FINISH, Where.AFTER_FINISH, Where.AFTER_DONE))


def _is_sensible(kind: Kind, row: KindRow, api: Dialect, place: Place, *, stream: bool) -> bool:
    where = place.where
    if kind is Kind.NOTHING:
        return where is Where.BEFORE_HEADERS  # a place where nothing happens is no place; one for each API and form
    if row.only_before_headers and where is not Where.BEFORE_HEADERS:
        return False
    if (where in (Where.INSIDE_EVENT, Where.MID_BODY) or (not stream and where is Where.AFTER_HEADERS)) and not row.inside:
        return False
    if kind is Kind.TOOL_KILLED and where is not Where.AFTER_TOOL:
        return False
    if kind is Kind.ABORT and where in (Where.AFTER_FINISH, Where.AFTER_DONE):
        return False
    if kind is Kind.DONE_ONLY and (not stream or api is Dialect.RESPONSES or where is Where.AFTER_DONE):
        return False  # there is no such mark, or it was sent already: an early end, which is EOF
    if kind is Kind.DONE_ONLY and api is Dialect.MESSAGES and where is Where.BEFORE_HEADERS:
        return True
    if kind is Kind.TERMINATED and where is Where.AFTER_DONE:
        return False
    assert stream or where in NOT_STREAMING
    return True

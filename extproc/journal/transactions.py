"""What the durable journal does in its database, as scripts: the order of statements is the order of locks.

Every script that ends or reopens a request locks its row first and reads its events afterwards. So of a boundary that is being
recorded and a take-over that is being made, one waits for the other and then sees it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from extproc.journal.interface import History, JournalQuery
from extproc.journal.records import EventKind, JournalEvent, RequestFacts, fold_all, lost_event
from extproc.storage.owner import Owner
from extproc.storage.script import Dialect, Row, Script, StatementFolder

SQL: Final = StatementFolder(Path(str(files("extproc.journal"))) / "sql")

EVENT_BYTES: Final = 200
"""What an event takes besides its detail, rows of both tables and their indexes together."""

_EventRow = tuple[int, str, str, int, str | None, str | None, str]
"""Number, request id, kind, time, attempt id, replica, detail."""
_RequestRow = tuple[str, int | None, int, str | None, int]
"""Request id, time of its admission if that is among the events, time of the last event, outcome if it ended, bytes."""


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event under the number that its processor gave it; a batch that is sent twice is stored once."""

    number: int
    event: JournalEvent


def store_events(owner: Owner, batch: Sequence[NumberedEvent]) -> Script[frozenset[str]]:
    """Store events in their order, where their requests are ``owner``'s. Returns the ids of the requests that are not.

    On PostgreSQL one statement: a boundary waits for one round trip and no more.
    """
    rows = [_event_row(item) for item in batch]
    touched = _touched(batch, rows)
    requests = _json(list(touched.values()))
    if owner.dialect is Dialect.POSTGRES:
        found = yield SQL("store_batch", owner=owner.processor_id, requests=requests, events=_json(rows))
        return frozenset(touched) - {str(row[0]) for row in found}
    owned: set[str] = set()
    if any(item.event.kind is EventKind.ADMITTED for item in batch):
        found = yield SQL("admit_requests", owner=owner.processor_id, requests=requests)
        owned |= {str(row[0]) for row in found}
    if len(owned) < len(touched):
        found = yield SQL("touch_requests", owner=owner.processor_id, requests=requests)
        owned |= {str(row[0]) for row in found}
    events = [row for row in rows if row[1] in owned]
    if events:
        yield SQL("insert_events", owner=owner.processor_id, events=_json(events))
    return frozenset(touched) - owned


def select_events(request_ids: Sequence[str]) -> Script[dict[str, tuple[JournalEvent, ...]]]:
    """The events of several requests, by request and in order; a request without events is missing."""
    rows = yield SQL("select_events", request_ids=_json(request_ids))
    found: dict[str, list[JournalEvent]] = {}
    for row in rows:
        event = _decode_event(row)
        found.setdefault(event.request_id, []).append(event)
    return {request_id: tuple(events) for request_id, events in found.items()}


def select_facts(query: JournalQuery) -> Script[tuple[RequestFacts, ...]]:
    """The facts of a query's requests, newest first."""
    rows = yield SQL("select_requests", outcome=query.outcome, since_ms=query.since_ms, rows_max=query.requests_max)
    request_ids = [str(row[0]) for row in rows]
    events = yield from select_events(request_ids)
    found = (fold_all(events.get(request_id, ())) for request_id in request_ids)
    return tuple(facts for facts in found if facts is not None)


def select_histories(after: str, requests_max: int) -> Script[tuple[History, ...]]:
    """One page of everything, by request id."""
    rows = yield SQL("select_histories", after=after, rows_max=requests_max)
    events = yield from select_events([str(row[0]) for row in rows])
    return tuple(History(request_id=str(row[0]), events=events.get(str(row[0]), ()), running=bool(row[1])) for row in rows)


def settle_lost_requests(owner: Owner, requests_max: int) -> Script[tuple[str, ...]]:
    """End the open requests whose processors are gone; their ids. What is ``owner``'s own runs, also where its name has expired:
    a database that was away, or a process that stood still, kept it from being renewed."""
    rows = yield SQL("select_lost_requests", owner=owner.processor_id, rows_max=requests_max)
    request_ids = tuple(str(row[0]) for row in rows)
    for request_id in request_ids:
        yield from settle_lost_request(owner, request_id)
    return request_ids


def settle_lost_request(owner: Owner, request_id: str) -> Script[RequestFacts | None]:
    """Take a lost request, whose row is locked, and end it; the facts afterwards, None where it never got as far as an event."""
    yield SQL("take_request", owner=owner.processor_id, request_id=request_id)
    events = yield from select_events([request_id])
    facts = fold_all(events.get(request_id, ()))
    if facts is None:
        yield SQL("delete_request", owner=owner.processor_id, request_id=request_id)
        return None
    rows = yield SQL("clock")
    end = lost_event(facts, int(rows[0][0]))
    yield from store_events(owner, [NumberedEvent(owner.next_number(), end)])
    return fold_all((*events[request_id], end))


def delete_requests(request_ids: Sequence[str]) -> Script[None]:
    """Forget requests and all that is stored of them."""
    for name in ("delete_events", "delete_answers", "delete_texts", "delete_requests"):
        yield SQL(name, request_ids=_json(request_ids))


def _event_row(item: NumberedEvent) -> _EventRow:
    event = item.event
    replica = event.replica.replace("\0", "") if event.replica else None
    return (item.number, event.request_id, event.kind.value, event.at_ms, event.attempt_id, replica, _json(dict(event.detail)))


def _touched(batch: Sequence[NumberedEvent], rows: Sequence[_EventRow]) -> dict[str, _RequestRow]:
    """What a batch changes of its requests. One row a request, as UPDATE ... FROM demands."""
    touched: dict[str, _RequestRow] = {}
    for item, row in zip(batch, rows, strict=True):
        event = item.event
        _, admitted_at_ms, _, outcome, stored_bytes = touched.get(event.request_id, (event.request_id, None, 0, None, 0))
        if event.kind is EventKind.ADMITTED:
            admitted_at_ms = event.at_ms
        if event.kind is EventKind.ENDED:
            outcome = str(event.detail.get("outcome"))
        stored_bytes += EVENT_BYTES + len(row[6])
        touched[event.request_id] = (event.request_id, admitted_at_ms, event.at_ms, outcome, stored_bytes)
    return touched


def _decode_event(row: Row) -> JournalEvent:
    request_id, kind, at_ms, attempt_id, replica, detail = row
    return JournalEvent(
        request_id=request_id,
        kind=EventKind(kind),
        at_ms=at_ms,
        attempt_id=attempt_id,
        replica=replica,
        detail=json.loads(detail),
    )


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _json(value: object) -> str:
    """ASCII only, so that what PostgreSQL's text can't hold (NUL, lone surrogates) arrives as escapes."""
    return _encode(value)

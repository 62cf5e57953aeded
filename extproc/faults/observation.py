"""What replicas, Envoy, the journal and the tool say of a round's requests, gathered once everything has come to rest."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from extproc.contract import headers as names
from extproc.faults.answers import Answer
from extproc.faults.evidence import AccessLine, AttemptEvidence, ClientEvidence, Evidence, JournalEntry, Published, ToolAction
from extproc.faults.gateway import POLL_S, read_access_log
from extproc.faults.invariants import attempts_in_order
from extproc.faults.points import TOKENS, Point
from extproc.faults.stage import Stage
from extproc.journal.records import EventKind

LOG_LIMIT_S: Final = 10.0
"""For what Envoy and the journal write a moment after the fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One request for one point; ``number`` tells the tries of a point apart."""

    point: Point
    number: int

    @property
    def name(self) -> str:
        """Its x-request-id."""
        return f"{self.point.key}~{self.number}"


@dataclass(slots=True, kw_only=True)
class Interventions:
    """What the suite itself did to replicas' processes in a round, and their logs from just before."""

    snapshots: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)
    stopped: dict[str, tuple[float, float]] = field(default_factory=dict)
    gateway_broken: bool = False


@dataclass(slots=True, kw_only=True)
class Observer:
    """Gathers evidence on one stage, round after round."""

    stage: Stage
    _access_offset: int = 0
    _access: dict[str, list[AccessLine]] = field(default_factory=dict)

    async def gather(
        self, trials: Mapping[Trial, ClientEvidence], interventions: Interventions, struck: Iterable[Trial]
    ) -> dict[Trial, Evidence]:
        """The evidence of a round, whose clients are done. ``struck``: those for which an armed fault must have struck."""
        attempts = await self._settled_attempts(trials, interventions)
        gathered = {}
        expects_fault = set(struck)
        for trial, client in trials.items():
            own = attempts.get(trial.name, ())
            request_id = _request_id(trial, client, own)
            gathered[trial] = Evidence(
                key=trial.point.key,
                name=trial.name,
                api=trial.point.api,
                stream=trial.point.stream,
                tokens=TOKENS,
                client=client,
                attempts=own,
                access=await self._access_lines(trial.name, is_due=not interventions.gateway_broken),
                journal=await self._journal(request_id, is_due=not interventions.gateway_broken),
                tool=self._tool_actions(request_id),
                bounds=self.stage.settings.bounds,
                gateway_broken=interventions.gateway_broken,
                expects_fault=trial in expects_fault,
            )
        self._access.clear()
        return gathered

    async def _settled_attempts(
        self, trials: Mapping[Trial, ClientEvidence], interventions: Interventions
    ) -> dict[str, tuple[AttemptEvidence, ...]]:
        """Every attempt once all are over, or once the last bound has passed."""
        ends = [client.over_at or time.monotonic() for client in trials.values()]
        resumed = [until for _, until in interventions.stopped.values()]
        deadline = max([*ends, *resumed]) + self.stage.settings.bounds.over_within_s + 1
        while True:
            attempts = await self._attempts(trials, interventions)
            is_settled = all(attempt.over_at is not None for own in attempts.values() for attempt in own)
            if is_settled or time.monotonic() > deadline:
                return attempts
            await asyncio.sleep(POLL_S)

    async def _attempts(
        self, trials: Mapping[Trial, ClientEvidence], interventions: Interventions
    ) -> dict[str, tuple[AttemptEvidence, ...]]:
        wanted = {trial.name for trial in trials}
        logs = await self.stage.logs()
        found: dict[str, list[AttemptEvidence]] = {}
        seen: set[str | None] = set()
        for source, ended_at in ((logs, {}), (interventions.snapshots, interventions.ended_at)):
            for replica, records in source.items():
                for record in records:
                    name = record["headers"].get("x-request-id")
                    if name in wanted and record["attempt_id"] not in seen:
                        seen.add(record["attempt_id"])
                        stopped = interventions.stopped.get(replica)
                        found.setdefault(name, []).append(_attempt(replica, record, ended_at.get(replica), stopped))
        return {name: attempts_in_order(tuple(own)) for name, own in found.items()}

    async def _access_lines(self, name: str, *, is_due: bool) -> tuple[AccessLine, ...]:
        deadline = time.monotonic() + LOG_LIMIT_S
        while True:
            lines, self._access_offset = read_access_log(self.stage.gateway.access_log, self._access_offset)
            for key, fresh in lines.items():
                self._access.setdefault(key, []).extend(fresh)
            found = self._access.get(name, [])
            if not is_due or any(line.listener == "front" for line in found) or time.monotonic() > deadline:
                return tuple(found)
            await asyncio.sleep(POLL_S)

    async def _journal(self, request_id: str | None, *, is_due: bool) -> tuple[JournalEntry, ...]:
        if request_id is None:
            return ()
        deadline = time.monotonic() + LOG_LIMIT_S
        while True:
            facts: dict[str, Any] | None = None
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                facts = await self.stage.gateway.facts(request_id)
            entries = tuple(_journal_entry(event) for event in (facts or {}).get("events", ()))
            has_ended = any(entry.kind == EventKind.ENDED for entry in entries)
            is_unknown = facts is not None and not entries
            if has_ended or is_unknown or not is_due or time.monotonic() > deadline:
                return entries
            await asyncio.sleep(POLL_S)

    def _tool_actions(self, request_id: str | None) -> tuple[ToolAction, ...]:
        return tuple(action for action in self.stage.tool.actions if action.request_id == request_id)


def _request_id(trial: Trial, client: ClientEvidence, attempts: tuple[AttemptEvidence, ...]) -> str | None:
    """From the answer where there is one, else from what a replica was sent; None where neither exists."""
    answered = Answer(trial.point.api, trial.point.stream, client)
    told = answered.request_id or str((answered.refusal or {}).get("request_id", ""))
    return told or next((attempt.request_id for attempt in attempts if attempt.request_id), None)


def _attempt(
    replica: str, record: Mapping[str, Any], process_ended_at: float | None, stopped: tuple[float, float] | None
) -> AttemptEvidence:
    same = ("request_id", "attempt_id", "received_at", "slot_taken_at", "slot_freed_at", "ended_at", "ended", "status", "fault")
    # What the process began after it was let go on was not held up by the stop.
    stop = stopped if stopped is not None and record["received_at"] < stopped[0] else (None, None)
    return AttemptEvidence(
        replica=replica,
        published=tuple(Published(**chunk) for chunk in record["chunks"]),
        tool_calls=len(record["tool_calls"]),
        first_lease_until=_lease_end(record["headers"].get(names.VALID_UNTIL_MS)),
        process_ended_at=process_ended_at,
        stopped_from=stop[0],
        stopped_until=stop[1],
        **{name: record[name] for name in same},
    )


def _lease_end(valid_until_ms: str | None) -> float | None:
    """From the guard's clock (extproc/worker/clock.py) to the suite's: one machine's two clocks, apart by its suspensions."""
    if valid_until_ms is None:
        return None
    return int(valid_until_ms) / 1000 - (time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())


def _journal_entry(event: Mapping[str, Any]) -> JournalEntry:
    return JournalEntry(
        kind=event["kind"],
        at_ms=event["at_ms"],
        attempt_id=event["attempt_id"],
        replica=event["replica"],
        detail=event.get("detail", {}),
    )

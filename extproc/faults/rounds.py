"""Points broken together on one stage: requests sent, held or struck at their places, their clients read to the end.

What a replica does by itself (scope REQUEST) needs no coordination, so a round is as many points as the machine likes. What
requests share is broken when every one of them is held at its place; the points on other replicas are for a later round.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from extproc.faults.acts import GATEWAY_ACTS, REPLICA_ACTS, Scene
from extproc.faults.apis import PATHS, request_body
from extproc.faults.client import Client
from extproc.faults.evidence import ClientEvidence, Evidence
from extproc.faults.gateway import POLL_S
from extproc.faults.observation import Interventions, Observer, Trial
from extproc.faults.points import KINDS, Kind, Place, Point, Scope
from extproc.faults.stage import ATTEMPTS_MAX, MODEL, Stage
from extproc.sim.faults import Fault, What, Where

CLIENT_LIMIT_S: Final = 60.0
"""An exchange that is not over by then never ends."""
HELD_LIMIT_S: Final = 30.0
SLOWNESS: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """``judged``: trials whose point was brought about; ``spared``: those that nothing struck, whose points are still to come."""

    judged: Mapping[Trial, Evidence]
    spared: Mapping[Trial, Evidence] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Runs rounds on one stage, one at a time."""

    stage: Stage
    observer: Observer

    async def run_requests(self, trials: Sequence[Trial]) -> RoundResult:
        """Points of the scopes REQUEST and CLIENT."""
        self.stage.tool.is_dying = any(trial.point.kind is Kind.TOOL_KILLED for trial in trials)
        await self._arm(trials)
        clients = {trial: await self._send(trial) for trial in trials}
        leaving = [trial for trial in trials if trial.point.row.scope is Scope.CLIENT]
        if leaving:
            await self._until_held({trial: clients[trial] for trial in leaving})
        for trial in leaving:
            clients[trial].leave(reset=trial.point.kind is Kind.CLIENT_RESET)
        evidence = await self._finish(
            clients, Interventions(), [trial for trial in trials if trial.point.kind is not Kind.NOTHING]
        )
        await self.stage.mend()
        return RoundResult(judged=evidence)

    async def run_on_replicas(self, kind: Kind, trials: Sequence[Trial]) -> RoundResult:
        """Points of one kind of the scope REPLICA: one replica is struck, and the others' requests are let go on.

        One, since a repeat that meets a second victim ends as attempts_exhausted, whichever place its first attempt was at.
        """
        await self._arm(trials)
        clients = {trial: await self._send(trial) for trial in trials}
        placed = await self._until_held(clients)
        ((victim, _),) = Counter(replica for replica, _ in placed.values()).most_common(1)
        struck = {trial: clients[trial] for trial, (replica, _) in placed.items() if replica == victim}
        interventions = Interventions()
        scene = Scene(
            stage=self.stage,
            victim=victim,
            struck=struck,
            request_ids={trial: placed[trial][1] for trial in struck},
            interventions=interventions,
        )
        act = REPLICA_ACTS[kind]
        await act.strike(scene)
        for name, replica in self.stage.replicas.items():
            if name != victim:
                await replica.release()
        await _all_over(clients.values())
        await act.undo(scene)
        evidence = await self._finish(clients, interventions, struck)
        await self.stage.mend()
        return RoundResult(
            judged={trial: found for trial, found in evidence.items() if trial in struck},
            spared={trial: found for trial, found in evidence.items() if trial not in struck},
        )

    async def run_on_gateway(self, kind: Kind, trials: Sequence[Trial]) -> RoundResult:
        """Points of one kind of the scope GATEWAY."""
        await self._arm(trials)
        clients = {trial: await self._send(trial) for trial in trials}
        placed = await self._until_held(clients)
        interventions = Interventions()
        scene = Scene(
            stage=self.stage,
            victim="",
            struck=clients,
            request_ids={trial: request_id for trial, (_, request_id) in placed.items()},
            interventions=interventions,
        )
        act = GATEWAY_ACTS[kind]
        await act.strike(scene)
        await _all_over(clients.values())
        await act.undo(scene)
        evidence = await self._finish(clients, interventions, trials)
        await self.stage.mend()
        return RoundResult(judged=evidence)

    async def _arm(self, trials: Sequence[Trial]) -> None:
        faults = [fault for trial in trials for fault in faults_of(trial)]
        for replica in self.stage.replicas.values():
            await replica.set_faults(*faults)

    async def _send(self, trial: Trial) -> Client:
        method_headers = (("content-type", "application/json"), ("x-request-id", trial.name))
        return await Client.send(self.stage.gateway.front, PATHS[trial.point.api], method_headers, body_of(trial.point))

    async def _until_held(self, clients: Mapping[Trial, Client]) -> dict[Trial, tuple[str, str]]:
        """Where each request is held, and its request id, once all are, and their clients have what was sent before that."""
        deadline = time.monotonic() + HELD_LIMIT_S
        held: dict[Trial, tuple[str, str]] = {}
        by_name = {trial.name: trial for trial in clients}
        while len(held) < len(clients) and time.monotonic() < deadline:
            for replica, records in (await self.stage.logs()).items():
                for record in records:
                    trial = by_name.get(record["headers"].get("x-request-id", ""))
                    if trial is not None and str(record["fault"]).endswith(f":{What.HOLD}"):
                        held[trial] = (replica, str(record["request_id"]))
            await asyncio.sleep(POLL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(1.0, deadline - time.monotonic())):
                for trial in held:
                    await clients[trial].until(_has_deltas(trial.point))
        return held

    async def _finish(
        self, clients: Mapping[Trial, Client], interventions: Interventions, struck: Sequence[Trial] | Mapping[Trial, Client]
    ) -> dict[Trial, Evidence]:
        await _all_over(clients.values())
        seen: dict[Trial, ClientEvidence] = {trial: await client.close() for trial, client in clients.items()}
        return await self.observer.gather(seen, interventions, struck)


def body_of(point: Point) -> bytes:
    """The request of a point."""
    tool = {"sim_tool": True} if point.calls_tool else {}
    return request_body(point.api, model=MODEL, stream=point.stream, **tool)


def faults_of(trial: Trial) -> list[Fault]:
    """What to arm at every replica for a trial."""
    point, row = trial.point, KINDS[trial.point.kind]
    if point.kind is Kind.NOTHING:
        return []
    first = [_fault(trial, Place(where=Where.IN_PREFILL), What.RESET, attempt=number) for number in range(1, point.attempt)]
    assert point.attempt <= ATTEMPTS_MAX
    holds = [_fault(trial, point.place, What.HOLD)] if row.scope is not Scope.REQUEST else []
    acts = [_fault(trial, point.place, row.what, status=row.status)] if row.what is not None else []
    return [*first, *holds, *acts]


def _fault(trial: Trial, place: Place, what: What, *, attempt: int | None = None, status: int | None = None) -> Fault:
    return Fault(
        where=place.where,
        what=what,
        deltas=place.deltas,
        nth=attempt or trial.point.attempt,
        header=f"x-request-id={trial.name}",
        status=status,
        factor=SLOWNESS,
    )


def _has_deltas(point: Point) -> Callable[[bytes], bool]:
    count = point.place.deltas_sent if point.stream else 0
    mark = f":{count - 1} ".encode()
    return lambda received: count == 0 or mark in received


async def _all_over(clients: Iterable[Client]) -> None:
    """Until every client has its end, or has waited long enough for it."""
    waits = [asyncio.ensure_future(client.end()) for client in clients if not client.is_over]
    if waits:
        _, pending = await asyncio.wait(waits, timeout=CLIENT_LIMIT_S)
        for wait in pending:
            wait.cancel()

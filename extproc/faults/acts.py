"""The ways of breaking what requests share: a replica, the way to it, Envoy, the processor, the journal.

An act is done to requests that are held at their places. It comes in two halves, so that what has to be looked at in between
can be: ``strike``, and ``undo`` once every client has its end.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from extproc.faults.client import Client
from extproc.faults.gateway import POLL_S
from extproc.faults.observation import Interventions, Trial
from extproc.faults.points import Kind, Position
from extproc.faults.stage import Stage
from extproc.journal.records import EventKind
from extproc.sim.link import Direction, Link
from extproc.sim.process import ReplicaProcess

FENCE_WAIT_LIMIT_S: Final = 1.5
"""Shorter than the lease, whose end is the end of the wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One act's surroundings. ``struck``: the requests that are held on the victim, or all of them where it is the gateway's."""

    stage: Stage
    victim: str
    struck: Mapping[Trial, Client]
    request_ids: Mapping[Trial, str]
    interventions: Interventions

    @property
    def replica(self) -> ReplicaProcess:
        return self.stage.replicas[self.victim]

    @property
    def link(self) -> Link:
        return self.stage.links[self.victim]

    async def keep_log(self) -> None:
        """The victim's log ends with its process."""
        self.interventions.snapshots |= await self.stage.logs((self.victim,))


Act = Callable[[Scene], Awaitable[None]]


async def _kill(scene: Scene) -> None:
    await scene.keep_log()
    scene.interventions.ended_at[scene.victim] = time.monotonic()
    scene.replica.kill()


async def _kill_engine(scene: Scene) -> None:
    await _end_in_words(scene, scene.replica.die)


async def _terminate(scene: Scene) -> None:
    async def ask() -> None:
        scene.replica.send_signal(signal.SIGTERM)

    await _end_in_words(scene, ask)


async def _end_in_words(scene: Scene, ask: Callable[[], Awaitable[None]]) -> None:
    """The replica ends its streams by itself, then its process. From the moment of asking on it computes nothing more."""
    await scene.keep_log()
    scene.interventions.ended_at[scene.victim] = time.monotonic()
    await ask()
    await scene.replica.wait()


async def _hang(scene: Scene) -> None:
    await scene.replica.hang()


async def _stop(scene: Scene) -> None:
    scene.interventions.stopped[scene.victim] = (time.monotonic(), float("inf"))
    scene.replica.send_signal(signal.SIGSTOP)


async def _let_go(scene: Scene) -> None:
    """Its guard finds leases that ended long ago, and what was held goes on only to be stopped."""
    stopped_at, _ = scene.interventions.stopped[scene.victim]
    scene.interventions.stopped[scene.victim] = (stopped_at, time.monotonic())
    scene.replica.send_signal(signal.SIGCONT)
    await scene.replica.release()


def _cut(direction: Direction) -> Act:
    async def act(scene: Scene) -> None:
        scene.link.cut(direction)

    return act


async def _heal(scene: Scene) -> None:
    scene.link.heal()
    await scene.replica.release()


async def _break_unheard(scene: Scene) -> None:
    """The connections break by RST, and no cancel reaches the replica. Returns when the gateway waits for its fences."""
    scene.link.cut(Direction.TO_REPLICA)
    await scene.replica.release()
    deadline = time.monotonic() + FENCE_WAIT_LIMIT_S
    waiting = dict(scene.request_ids)
    while waiting and time.monotonic() < deadline:
        for trial, request_id in tuple(waiting.items()):
            facts = await scene.stage.gateway.facts(request_id)
            if any(event["kind"] in (EventKind.ATTEMPT_FAILED, EventKind.ENDED) for event in facts.get("events", ())):
                del waiting[trial]
        await asyncio.sleep(POLL_S)


async def _break_unheard_and_leave(scene: Scene) -> None:
    """Those leave that wait for a fence; after the boundary an end is on its way, which must not meet a client that leaves."""
    await _break_unheard(scene)
    for trial, client in scene.struck.items():
        if trial.point.position is Position.BEFORE_BOUNDARY:
            client.leave()


async def _break_unheard_and_heal(scene: Scene) -> None:
    await _break_unheard(scene)
    await _heal(scene)


async def _break_unheard_and_kill(scene: Scene) -> None:
    await _break_unheard(scene)
    await _kill(scene)


async def _nothing(scene: Scene) -> None:
    """What is left is mended after the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRow:
    """``undo`` is done when every client has its end, and before evidence is gathered."""

    strike: Act
    undo: Act = _nothing


REPLICA_ACTS: Final[dict[Kind, ActRow]] = {
    Kind.KILLED: ActRow(strike=_kill),
    Kind.ENGINE_KILLED: ActRow(strike=_kill_engine),
    Kind.ENGINE_HUNG: ActRow(strike=_hang),
    Kind.TERMINATED: ActRow(strike=_terminate),
    Kind.STOPPED: ActRow(strike=_stop, undo=_let_go),
    Kind.CUT_BOTH: ActRow(strike=_cut(Direction.BOTH), undo=_heal),
    Kind.CUT_FROM_REPLICA: ActRow(strike=_cut(Direction.FROM_REPLICA), undo=_heal),
    Kind.CUT_TO_REPLICA: ActRow(strike=_cut(Direction.TO_REPLICA), undo=_heal),
    Kind.FENCE_WAIT_CLIENT_CLOSED: ActRow(strike=_break_unheard_and_leave, undo=_heal),
    Kind.FENCE_WAIT_HEALED: ActRow(strike=_break_unheard_and_heal),
    Kind.FENCE_WAIT_KILLED: ActRow(strike=_break_unheard_and_kill),
}


async def _kill_processor(scene: Scene) -> None:
    scene.interventions.gateway_broken = True
    await scene.stage.gateway.kill("processor")


async def _kill_envoy(scene: Scene) -> None:
    scene.interventions.gateway_broken = True
    await scene.stage.gateway.kill("envoy")


async def _drain_processor(scene: Scene) -> None:
    await scene.stage.gateway.terminate("processor")


async def _start_processor(scene: Scene) -> None:
    await scene.stage.gateway.start_processor()
    await scene.stage.until_serving()


async def _start_envoy(scene: Scene) -> None:
    await scene.stage.gateway.start_envoy()
    await scene.stage.until_serving()


async def _lose_journal(scene: Scene) -> None:
    """Everything goes on, and reaches the boundary or its end, while nothing can be written."""
    with scene.stage.gateway.journal_lost():
        await _release_all(scene)
        await asyncio.gather(*(client.end() for client in scene.struck.values()))
    await scene.stage.until_serving()


async def _release_all(scene: Scene) -> None:
    for replica in scene.stage.replicas.values():
        await replica.release()


GATEWAY_ACTS: Final[dict[Kind, ActRow]] = {
    Kind.PROCESSOR_KILLED: ActRow(strike=_kill_processor, undo=_start_processor),
    Kind.PROCESSOR_DRAINED: ActRow(strike=_drain_processor, undo=_start_processor),
    Kind.ENVOY_KILLED: ActRow(strike=_kill_envoy, undo=_start_envoy),
    Kind.JOURNAL_LOST: ActRow(strike=_lose_journal),
}

"""Which replicas may repeat one another's requests (R8): what each one serves, learnt when it appears and when it restarts.

A replica's identity is what its operator declared together with what it tells of itself. Until something is known of it, and
where the two disagree, its identity is its own address: equal to no other's, so nothing is repeated from it or to it. What was
learnt stays while the replica can't be heard, but it is one process's: as soon as the heartbeat hears another one there, or
health says that it was started again, its identity is unknown until the new process was asked.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from extproc.decision.identity import ConflictingFactsError, Facts
from extproc.replicas.guard_client import ToldFacts
from extproc.replicas.roster import Replica, Roster
from extproc.replicas.shown_facts import FactsKeptBackError, FactsUnreadableError

LEARN_AGAIN_S: Final = 30.0
"""Adapters are loaded into running servers, and without a guard a restart tells nobody of itself."""
UNHEARD_AGAIN_S: Final = 1.0
"""A replica that never told anything is loading its model, most likely."""
FIRST_ROUND_S: Final = 2.0
"""How long a start waits for replicas that don't answer."""

ReadFacts = Callable[[str], Awaitable[ToldFacts]]
"""URL to what the replica there tells, and which of its processes. Raises FactsUnreadableError."""

log = logging.getLogger("deltafence.identity")


@dataclass(slots=True, kw_only=True, eq=False)
class Learner:
    """What is known of one replica, and the task that keeps it true."""

    replica: Replica
    due: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it was asked, whatever came of that."""
    learnt: ToldFacts | None = None
    serving: str | None = None
    """The boot id that the heartbeat heard last."""
    restarts: int = 0
    """Of which health has told."""
    said: str = ""
    """The last thing logged of it, so that nothing is said twice."""
    task: asyncio.Task[None] | None = None


class Identities:
    """Keeps a roster's identities. A RosterListener."""

    def __init__(self, roster: Roster, read: ReadFacts) -> None:
        self._roster: Final = roster
        self._read: Final = read
        self._learners: Final[dict[str, Learner]] = {}

    @asynccontextmanager
    async def learning(self) -> AsyncIterator[None]:
        """Learn until the end; begins once every replica that answers at once was asked once."""
        self._roster.subscribe(self)
        try:
            rounds = [asyncio.ensure_future(learner.asked.wait()) for learner in self._learners.values()]
            if rounds:
                _, late = await asyncio.wait(rounds, timeout=FIRST_ROUND_S)
                for waiting in late:
                    waiting.cancel()
            yield
        finally:
            tasks = [self._end(destination) for destination in list(self._learners)]
            await asyncio.gather(*tasks, return_exceptions=True)

    def replicas_changed(self, replicas: tuple[Replica, ...]) -> None:
        """See RosterListener. A replica that declares something else is another one."""
        known = {replica.destination: replica for replica in replicas}
        for destination, learner in list(self._learners.items()):
            if known.get(destination) != learner.replica:
                self._end(destination)
        for destination, replica in known.items():
            if destination not in self._learners:
                self._begin(Learner(replica=replica))

    def attempt_placed(self, replica: Replica) -> None:
        """See RosterListener."""

    def restarted(self, destination: str) -> None:
        """Another process answers there, and health doesn't know which: what the last one told says nothing of it."""
        learner = self._learners.get(destination)
        if learner is not None:
            learner.restarts += 1
            learner.serving = None
            self._forget(learner)

    def process_heard(self, destination: str, boot_id: str) -> None:
        """See watch.ProcessHeard. What was learnt stays if this is the process that told it."""
        learner = self._learners.get(destination)
        if learner is not None:
            learner.serving = boot_id
            if learner.learnt is not None and learner.learnt.boot_id != boot_id:
                self._forget(learner)

    def _forget(self, learner: Learner) -> None:
        learner.learnt = None
        self._tell_roster(learner)
        learner.due.set()

    def _begin(self, learner: Learner) -> None:
        self._learners[learner.replica.destination] = learner
        self._tell_roster(learner)
        learner.task = asyncio.create_task(self._learn(learner), name=f"identity of {learner.replica.destination}")

    def _end(self, destination: str) -> asyncio.Task[None]:
        task = self._learners.pop(destination).task
        assert task is not None, "a learner is begun with its task"
        task.cancel()
        return task

    async def _learn(self, learner: Learner) -> None:
        while True:
            learner.due.clear()
            again_s = await self._ask(learner)
            learner.asked.set()
            try:
                async with asyncio.timeout(again_s):
                    await learner.due.wait()
            except TimeoutError:
                continue

    async def _ask(self, learner: Learner) -> float:
        """Seconds until it is asked again, if there is no news of it before."""
        before = learner.restarts, learner.serving
        try:
            told = await self._read(learner.replica.url)
        except FactsUnreadableError as error:
            if learner.learnt is not None:
                return LEARN_AGAIN_S
            self._say(learner, f"tells nothing: {error}")
            return LEARN_AGAIN_S if isinstance(error, FactsKeptBackError) else UNHEARD_AGAIN_S
        is_of_serving = told.boot_id is not None and told.boot_id == learner.serving
        if before != (learner.restarts, learner.serving) and not is_of_serving:
            learner.due.set()  # the news came while it was being asked, so the process before may have told this
            return UNHEARD_AGAIN_S
        learner.learnt = told
        self._tell_roster(learner)
        return LEARN_AGAIN_S

    def _tell_roster(self, learner: Learner) -> None:
        replica = learner.replica
        try:
            facts = replica.declared.merged(learner.learnt.facts if learner.learnt is not None else Facts())
        except ConflictingFactsError as conflict:
            self._roster.set_identity(replica.destination, unproven(replica.destination))
            self._say(learner, f"serves something else than is declared, so nothing is repeated there: {conflict}")
            return
        self._roster.set_identity(replica.destination, facts.identity.key or unproven(replica.destination))
        if learner.learnt is not None:
            self._say(learner, f"serves {facts.identity.key}; nobody tells: {', '.join(facts.fingerprint.unknown) or 'nothing'}")

    def _say(self, learner: Learner, text: str) -> None:
        if text != learner.said:
            learner.said = text
            log.info("replica %s %s", learner.replica.url, text)


def unproven(destination: str) -> str:
    """The identity of a replica of which nothing is known for sure: its own address, which is equal to no other's."""
    return f"unproven:{destination}"

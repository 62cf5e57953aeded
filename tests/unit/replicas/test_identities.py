"""Which replicas may repeat one another's requests: only those that are known to serve the same (R8)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extproc.decision.identity import Facts
from extproc.replicas import identities as module
from extproc.replicas.guard_client import ToldFacts
from extproc.replicas.identities import Identities
from extproc.replicas.roster import Replica, Roster
from extproc.replicas.shown_facts import FactsKeptBackError, FactsUnreadableError

A, B = (Replica(destination=f"{name}:1", url=f"http://{name}:1") for name in "ab")
LLAMA = Facts(model="llama", root="/models/llama")


class Telling:
    """What each replica tells when it is asked; None: nothing can be read. ``asked`` counts the questions by URL.

    ``boots`` are the processes that tell it, where they say so. While ``answering`` is clear, an answer stays under way.
    """

    def __init__(self) -> None:
        self.facts: dict[str, Facts | None] = {A.url: LLAMA, B.url: LLAMA}
        self.boots: dict[str, str] = {}
        self.silence = FactsUnreadableError("nobody answers")
        """Of whom ``facts`` has None."""
        self.asked = {A.url: 0, B.url: 0}
        self.answering = asyncio.Event()
        self.answering.set()
        self.changed = asyncio.Condition()

    async def read(self, url: str) -> ToldFacts:
        async with self.changed:
            self.asked[url] += 1
            self.changed.notify_all()
        facts, boot_id = self.facts[url], self.boots.get(url)
        if not self.answering.is_set():
            await self.answering.wait()
        if facts is None:
            raise self.silence
        return ToldFacts(facts=facts, boot_id=boot_id)

    async def until_asked(self, url: str, times: int) -> None:
        """The roster knows the answer by then: nothing waits between the question and its word."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.asked[url] >= times)


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Telling:
    monkeypatch.setattr(module, "UNHEARD_AGAIN_S", 0.001)
    return Telling()


@pytest.fixture
def roster() -> Roster:
    return Roster([A, B])


@pytest.fixture
async def identities(roster: Roster, telling: Telling) -> AsyncIterator[Identities]:
    identities = Identities(roster, telling.read)
    yield identities
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("identity of")]


def may_repeat(roster: Roster, first: Replica, second: Replica) -> bool:
    identity = {replica.destination: replica.identity for replica in roster.replicas}[first.destination]
    return roster.choose([first.destination], identity) == second


@pytest.mark.parametrize(
    ("silence", "again_s"),
    [
        (FactsUnreadableError("nobody answers"), "UNHEARD_AGAIN_S"),
        (FactsKeptBackError("/v1/models is not open"), "LEARN_AGAIN_S"),
    ],
)
async def test_a_replica_that_answers_and_tells_nothing_is_not_asked_every_second(
    roster: Roster, telling: Telling, silence: FactsUnreadableError, again_s: str
) -> None:
    """A vLLM with an API key and without a guard would log two refusals a second for each processor, for ever."""
    telling.facts[A.url], telling.silence = None, silence
    learner = module.Learner(replica=A)
    assert await Identities(roster, telling.read)._ask(learner) == getattr(module, again_s)


async def test_replicas_that_show_the_same_may_repeat_each_other(roster: Roster, identities: Identities) -> None:
    async with identities.learning():
        assert may_repeat(roster, A, B)
        assert may_repeat(roster, B, A)


@pytest.mark.parametrize(
    "other",
    [
        Facts(model="llama", root="/models/llama-2"),
        Facts(model="llama", root="/models/llama", revision="3f1c"),
        Facts(model="llama", root="/models/llama", adapters=("sql",)),
    ],
)
async def test_any_difference_bars_the_repeat(roster: Roster, identities: Identities, telling: Telling, other: Facts) -> None:
    telling.facts[B.url] = other
    async with identities.learning():
        assert not may_repeat(roster, A, B)
        assert not may_repeat(roster, B, A)


async def test_a_replica_that_tells_nothing_is_equal_to_none(roster: Roster, identities: Identities, telling: Telling) -> None:
    telling.facts = {A.url: None, B.url: None}
    async with identities.learning():
        assert not may_repeat(roster, A, B)
        assert roster.choose() is not None


async def test_one_that_tells_nothing_yet_is_asked_again(roster: Roster, identities: Identities, telling: Telling) -> None:
    telling.facts[B.url] = None
    async with identities.learning():
        assert not may_repeat(roster, A, B)
        telling.facts[B.url] = LLAMA
        await telling.until_asked(B.url, telling.asked[B.url] + 1)
        assert may_repeat(roster, A, B)


async def test_what_is_declared_does_where_a_replica_tells_nothing(telling: Telling) -> None:
    telling.facts = {A.url: None, B.url: None}
    declared = [Replica(destination=one.destination, url=one.url, declared=Facts(revision="7")) for one in (A, B)]
    roster = Roster(declared)
    async with Identities(roster, telling.read).learning():
        assert may_repeat(roster, *declared)


async def test_one_that_serves_something_else_than_declared_is_equal_to_none(
    telling: Telling, caplog: pytest.LogCaptureFixture
) -> None:
    declared = [Replica(destination=one.destination, url=one.url, declared=Facts(root="/models/old")) for one in (A, B)]
    roster = Roster(declared)
    caplog.set_level("INFO")
    async with Identities(roster, telling.read).learning():
        assert not may_repeat(roster, *declared)
    assert "root is '/models/old' by one source and '/models/llama' by another" in caplog.text


async def test_after_a_restart_it_is_asked_before_it_is_believed(
    roster: Roster, identities: Identities, telling: Telling
) -> None:
    async with identities.learning():
        telling.facts[B.url] = Facts(model="llama", root="/models/other")
        identities.restarted(B.destination)
        assert not may_repeat(roster, A, B)
        await telling.until_asked(B.url, 2)
        assert not may_repeat(roster, A, B)
        telling.facts[B.url] = LLAMA
        identities.restarted(B.destination)
        await telling.until_asked(B.url, 3)
        assert may_repeat(roster, A, B)


async def test_what_one_process_told_is_not_believed_of_another(roster: Roster, identities: Identities, telling: Telling) -> None:
    telling.boots = {A.url: "boot_a", B.url: "boot_1"}
    async with identities.learning():
        identities.process_heard(B.destination, "boot_1")
        assert may_repeat(roster, A, B)
        assert telling.asked[B.url] == 1, "it is the process that was asked"
        telling.facts[B.url] = None
        identities.process_heard(B.destination, "boot_2")
        assert not may_repeat(roster, A, B)
        telling.facts[B.url], telling.boots[B.url] = LLAMA, "boot_2"
        await telling.until_asked(B.url, telling.asked[B.url] + 1)
        assert may_repeat(roster, A, B)


async def test_the_first_process_that_the_heartbeat_hears_may_be_another_one(
    roster: Roster, identities: Identities, telling: Telling
) -> None:
    """It was restarted after it was asked and before its first beat."""
    telling.boots[B.url] = "boot_1"
    async with identities.learning():
        telling.facts[B.url] = None
        identities.process_heard(B.destination, "boot_2")
        assert not may_repeat(roster, A, B)


@pytest.mark.parametrize("boot", [None, "boot_1"], ids=["told by nobody", "told by the guard"])
@pytest.mark.parametrize("by", ["health", "heartbeat"])
async def test_an_answer_that_was_under_way_during_the_restart_is_not_believed(
    roster: Roster, identities: Identities, telling: Telling, by: str, boot: str | None
) -> None:
    if boot is not None:
        telling.boots[B.url] = boot
    async with identities.learning():
        identities.process_heard(B.destination, "boot_1")
        if boot is None:
            await telling.until_asked(B.url, 2)
        asked = telling.asked[B.url]
        telling.answering.clear()
        identities.restarted(B.destination)
        await telling.until_asked(B.url, asked + 1)
        telling.facts[B.url] = None  # the new process loads its model
        if by == "health":
            identities.restarted(B.destination)
        else:
            identities.process_heard(B.destination, "boot_2")
        telling.answering.set()
        await telling.until_asked(B.url, asked + 2)
        assert not may_repeat(roster, A, B)


async def test_an_answer_under_way_is_believed_where_the_process_heard_has_given_it(
    roster: Roster, identities: Identities, telling: Telling
) -> None:
    telling.boots[B.url] = "boot_1"
    async with identities.learning():
        telling.boots[B.url] = "boot_2"
        telling.answering.clear()
        identities.restarted(B.destination)
        await telling.until_asked(B.url, 2)
        identities.process_heard(B.destination, "boot_2")
        telling.answering.set()
        while not may_repeat(roster, A, B):
            await asyncio.sleep(0)
        assert telling.asked[B.url] == 2


async def test_what_was_learnt_outlives_silence_and_a_new_picture(
    roster: Roster, identities: Identities, telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEARN_AGAIN_S", 0.001)
    async with identities.learning():
        telling.facts[B.url] = None
        roster.become([A, Replica(destination=B.destination, url=B.url)])
        await telling.until_asked(B.url, telling.asked[B.url] + 2)
        assert may_repeat(roster, A, B)


async def test_one_that_left_and_came_again_is_asked_again(roster: Roster, identities: Identities, telling: Telling) -> None:
    async with identities.learning():
        roster.become([A])
        telling.facts[B.url] = Facts(model="other")
        roster.become([A, B])
        assert not may_repeat(roster, A, B)


async def test_a_start_does_not_wait_for_one_that_never_answers(roster: Roster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_ROUND_S", 0.001)

    async def read(url: str) -> ToldFacts:
        return ToldFacts(facts=LLAMA) if url == A.url else await asyncio.Future()

    async with Identities(roster, read).learning():
        assert not may_repeat(roster, A, B)


async def test_a_restart_of_one_that_is_not_known_is_nothing(identities: Identities) -> None:
    async with identities.learning():
        identities.restarted("c:1")
        identities.process_heard("c:1", "boot_1")

"""What the commands, and a gateway that was started again, tell of a database that a real gateway wrote (R4, R9)."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from extproc.sim.faults import What, Where
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from tests.real_envoy.durable import Answer, Scene, chat, deltafence, durable_gateway, stored

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]  # gateways start within it


@dataclass
class Written:
    """What a gateway, which has ended, had answered."""

    answers: dict[str, Answer]
    replicas: list[ReplicaProcess]
    database: str

    @property
    def ids(self) -> dict[str, str]:
        return {outcome: answer.request_id for outcome, answer in self.answers.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def written(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> AsyncIterator[Written]:
    folder: Path = tmp_path_factory.mktemp("commands")
    faults = {
        "completed": (Where.IN_PREFILL, What.RESET, 1),
        "interrupted": (Where.MID_DECODE, What.RESET, 1),
        "failed": (Where.IN_PREFILL, What.RESET, None),
    }
    answers = {}
    async with AsyncExitStack() as stack:
        settings = {"tokens": 4, "claims": str(folder)}
        replicas = [await stack.enter_async_context(start_replica(Settings(name=name, **settings))) for name in ("a", "b")]
        policy = {"journal": {"store_text": True}}
        async with durable_gateway(replicas, folder / "first", module_database_url, policy=policy) as gateway:
            for outcome, (where, what, nth) in faults.items():
                scene = Scene(replicas)
                await scene.arm(where, what, nth=nth)
                answers[outcome] = await gateway.ask(chat(text=f"A question that is {outcome}."), scene.headers)
        for replica in replicas:
            await replica.reset()
        yield Written(answers, replicas, module_database_url)


async def test_a_gateway_that_was_started_again_tells_the_same(written: Written, tmp_path: Path) -> None:
    async with durable_gateway(written.replicas, tmp_path / "again", written.database) as gateway:
        for outcome, request_id in written.ids.items():
            facts = await gateway.facts(request_id)
            assert facts["outcome"] == outcome
            assert facts == await stored(written.database, request_id)


async def test_show_tells_a_timeline(written: Written) -> None:
    request_id = written.ids["interrupted"]
    status, printed, _ = await deltafence("journal", "show", request_id, "--db", written.database)
    assert status == 0
    head, summary, _clock, *timeline = printed.splitlines()
    assert head.startswith(f"{request_id}  chat  model sim-model  route chat  stream")
    assert summary == "interrupted (replica_gone): 3 output tokens delivered (counted), 1 attempt"
    kinds = [line.split()[1] for line in timeline]
    assert kinds[:4] == ["admitted", "attempt_started", "response_started", "first_delta_sent"]
    assert kinds[-1] == "ended"
    assert all(line.startswith("  +") for line in timeline)
    status, _, complaint = await deltafence("journal", "show", "req_unknown", "--db", written.database)
    assert (status, complaint) == (1, "no request req_unknown is in the journal\n")


async def test_list_finds_by_outcome_and_time(written: Written) -> None:
    for outcome, request_id in written.ids.items():
        words = ("journal", "list", "--outcome", outcome, "--since", "1h", "--db", written.database, "--json")
        status, printed, _ = await deltafence(*words)
        assert status == 0
        assert [json.loads(line)["request_id"] for line in printed.splitlines()] == [request_id]
    _, printed, _ = await deltafence("journal", "list", "--db", written.database)
    assert [line.split()[0] for line in printed.splitlines()] == sorted(written.ids.values(), reverse=True)


async def test_verify_counts_and_is_content(written: Written) -> None:
    status, printed, _ = await deltafence("journal", "verify", "--db", written.database)
    assert status == 0
    assert printed.startswith("3 requests, 0 running, ")
    assert printed.endswith("; 0 promises broken\n")


async def test_texts_are_kept_only_where_the_policy_says_so(written: Written, tmp_path: Path) -> None:
    for outcome, answer in written.answers.items():
        status, printed, _ = await deltafence("journal", "show", answer.request_id, "--text", "--db", written.database)
        assert status == 0
        request, _, given = printed.removeprefix("--- request\n").partition("\n--- answer\n")
        assert request.encode() == chat(text=f"A question that is {outcome}.")
        assert given.strip() == answer.body.decode().strip()
    async with durable_gateway(written.replicas, tmp_path / "plain", written.database) as gateway:
        plain = await gateway.ask(chat(text="A question that is nobody's business."))
        assert plain.is_whole
    status, _, complaint = await deltafence("journal", "show", plain.request_id, "--text", "--db", written.database)
    assert (status, complaint) == (1, f"no text of {plain.request_id} is in the journal\n")
    if written.database.startswith("sqlite:"):
        assert b"nobody's business" not in Path(written.database.removeprefix("sqlite:")).read_bytes()


async def test_a_database_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    for command in (("journal", "verify"), ("journal", "list"), ("tools", "list")):
        status, printed, complaint = await deltafence(*command, "--db", str(tmp_path / "absent.db"))
        assert (status, printed, complaint) == (2, "", f"there is no journal at {tmp_path / 'absent.db'}\n")

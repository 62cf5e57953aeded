"""The official SDKs, unchanged, through the real Envoy: whole answers, repeats, the terminal event, leaving early (R9, R19)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from extproc.app.demonstration.stage import QUICK_HEALTH, break_first, gateway, may_repeat, mend, until_every_replica
from extproc.contract.headers import REQUEST_ID
from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from tests.sdk.sdks import SDKS, Sdk

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)]

TOKENS = 8
LIMIT_S = 30.0
WHOLE_TEXTS = {" ".join(f"{name}:{number}" for number in range(TOKENS)) for name in ("a", "b")}
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


def fault_of_attempts(**fields: Any) -> Fault:
    """A fault that no health check meets."""
    return Fault(header=REQUEST_ID, **fields)


@dataclass
class Stage:
    replicas: list[ReplicaProcess]
    url: str
    admin: str

    async def facts(self, request_id: str) -> dict[str, Any]:
        """The journal's facts, once the request has ended."""
        async with httpx.AsyncClient(timeout=LIMIT_S) as client, asyncio.timeout(LIMIT_S):
            while True:
                facts: dict[str, Any] = (await client.get(f"{self.admin}/deltafence/v1/requests/{request_id}")).json()
                if facts.get("outcome") is not None:
                    return facts
                await asyncio.sleep(0.01)

    async def log(self) -> list[dict[str, Any]]:
        """The attempts that reached the replicas since the last test. Health checks bear no request id."""
        records = [record for replica in self.replicas for record in await replica.log()]
        return [record for record in records if record["request_id"]]

    async def free(self) -> None:
        """Wait until no replica has a request any more."""
        async with asyncio.timeout(LIMIT_S):
            while any([(await replica.state())["running"] for replica in self.replicas]):
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    directory = tmp_path_factory.mktemp("gateway")
    policy = directory / "policy.yaml"
    policy.write_text("retry_budget: {percent: 100, min_per_second: 100, burst: 1000}")
    log = directory / "up.log"
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(start_replica(Settings(name=name, tokens=TOKENS))) for name in ("a", "b")]
        url, admin = await stack.enter_async_context(gateway(replicas, log, "--policy", str(policy), *QUICK_HEALTH))
        yield Stage(replicas=replicas, url=url, admin=admin)
    assert "Traceback" not in Path(log).read_text(), Path(log).read_text()[-4000:]


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: Stage) -> AsyncIterator[Stage]:
    await until_every_replica(may_repeat, running.admin)
    yield running
    await mend(running.replicas)


@STREAMED
async def test_a_whole_answer(stage: Stage, sdk: Sdk, stream: bool) -> None:
    heard = await sdk.ask(stage.url, stream=stream)
    assert heard.error is None
    assert heard.text.strip() in WHOLE_TEXTS
    assert len(await stage.log()) == 1


@pytest.mark.parametrize(
    ("stream", "where", "what"),
    [(True, Where.AFTER_HEADERS, What.KILL), (False, Where.IN_PREFILL, What.RESET)],
    ids=["streamed", "whole"],
)
async def test_a_repeated_answer_is_whole_and_of_one_replica(
    stage: Stage, sdk: Sdk, stream: bool, where: Where, what: What
) -> None:
    fault = fault_of_attempts(where=where, what=what, times=1)
    heard = await break_first(lambda _: sdk.ask(stage.url, stream=stream), stage.replicas[0], fault)
    assert heard.error is None
    assert heard.text.strip() == " ".join(f"b:{number}" for number in range(TOKENS))


async def test_the_terminal_event_raises_and_says_what_was_delivered(stage: Stage, sdk: Sdk) -> None:
    fault = fault_of_attempts(where=Where.MID_DECODE, what=What.RESET, deltas=3, times=1)
    heard = await break_first(lambda _: sdk.ask(stage.url, stream=True), stage.replicas[0], fault)
    assert heard.text.strip() == "a:0 a:1 a:2"
    assert heard.error is not None
    facts = heard.error.facts
    assert (facts["code"], facts["reason"]) == ("upstream_decode_interrupted", "replica_gone")
    assert (facts["partial_output"], facts["delivered_output_tokens"], facts["retryable"]) == (True, 3, False)
    assert heard.error.code == "upstream_decode_interrupted"
    assert "3 output tokens were delivered" in heard.error.message
    journal = await stage.facts(facts["request_id"])
    assert (journal["outcome"], journal["delivered_output_tokens"], len(journal["attempts"])) == ("interrupted", 3, 1)


@STREAMED
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (fault_of_attempts(where=Where.BEFORE_HEADERS, what=What.HTTP_ERROR, status=500), 502, "attempts_exhausted"),
        (fault_of_attempts(where=Where.BEFORE_HEADERS, what=What.HTTP_ERROR, status=503, retry_after_s=1), 503, "overloaded"),
    ],
    ids=["failing", "overloaded"],
)
async def test_id_03_an_exhausted_request_is_sent_once(
    stage: Stage, sdk: Sdk, stream: bool, fault: Fault, status: int, code: str
) -> None:
    """By default every SDK repeats a 5xx twice, which would make six attempts of two."""
    for replica in stage.replicas:
        await replica.set_faults(fault)
    heard = await sdk.ask(stage.url, stream=stream)
    assert heard.error is not None
    assert (heard.text, heard.error.status, heard.error.facts["code"]) == ("", status, code)
    assert (heard.error.facts["partial_output"], heard.error.facts["attempts"]) == (False, 2)
    requests = [record["request_id"] for record in await stage.log()]
    assert requests == [heard.error.facts["request_id"]] * 2


async def test_a_client_that_leaves_early_frees_its_replica(stage: Stage, sdk: Sdk) -> None:
    for replica in stage.replicas:
        await replica.set_faults(fault_of_attempts(where=Where.AFTER_FIRST_DELTA, what=What.STALL))
    heard = await sdk.ask(stage.url, stream=True, leave=True)
    await stage.free()
    assert heard.text.strip() in ("a:0", "b:0")
    (record,) = await stage.log()
    facts = await stage.facts(record["request_id"])
    assert (facts["outcome"], facts["reason"], len(facts["attempts"])) == ("cancelled", "client_gone", 1)
    assert len(await stage.log()) == 1

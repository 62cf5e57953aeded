"""Idempotency-Key on the real Envoy, with raw HTTP and the official OpenAI SDK: who runs, what repeats are told (R9, R11)."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from extproc.app.demonstration.apis import PATHS, request_body
from extproc.app.demonstration.stage import QUICK_HEALTH
from extproc.contract import headers as names
from extproc.sim.faults import What, Where
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect
from tests.real_envoy.durable import LIMIT_S, Answer, Gateway, Scene, all_placeable, chat, durable_gateway, logged, verified

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]  # gateways start within it

TOKENS = 4
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@dataclass
class KeyStage:
    """Two gateways over one database: ``facts`` tells repeats what happened, ``replay`` gives them the stored answer."""

    facts: Gateway
    replay: Gateway
    replicas: list[ReplicaProcess]
    database: str

    async def attempts(self, request_id: str) -> list[dict[str, Any]]:
        """The replicas' own log of a logical request, oldest first."""
        return [record for record in await logged(self.replicas) if record["request_id"] == request_id]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> AsyncIterator[KeyStage]:
    folder: Path = tmp_path_factory.mktemp("keys")
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(start_replica(Settings(name=name, tokens=TOKENS, claims=str(folder))))
            for name in ("a", "b")
        ]
        facts = durable_gateway(replicas, folder / "facts", module_database_url, *QUICK_HEALTH)
        replaying = {"journal": {"replay": True}}
        replay = durable_gateway(replicas, folder / "replay", module_database_url, *QUICK_HEALTH, policy=replaying)
        yield KeyStage(
            facts=await stack.enter_async_context(facts),
            replay=await stack.enter_async_context(replay),
            replicas=replicas,
            database=module_database_url,
        )
    logs = "".join((folder / name / "up.log").read_text() for name in ("facts", "replay"))
    assert "never-in-clear" not in logs
    if module_database_url.startswith("sqlite:"):
        assert b"never-in-clear" not in Path(module_database_url.removeprefix("sqlite:")).read_bytes()


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: KeyStage) -> AsyncIterator[KeyStage]:
    for replica in running.replicas:
        await replica.reset()
    await all_placeable(running.facts, running.replay)
    yield running
    assert (await verified(running.database))["ok"]


@pytest.fixture
def key(request: pytest.FixtureRequest) -> dict[str, str]:
    """A key that no other test has."""
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()
    return {names.IDEMPOTENCY_KEY: f'"never-in-clear-{name}"'}


def told(answer: Answer) -> tuple[int, str, str]:
    """Status, code, and whether an SDK may try again by itself."""
    return answer.status, answer.error["code"], answer.headers[names.SHOULD_RETRY]


# ---- while the first runs


@STREAMED
async def test_a_repeat_of_a_running_request_is_told_that_it_runs(stage: KeyStage, key: dict[str, str], stream: bool) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.IN_PREFILL, What.HOLD)
    first = asyncio.create_task(stage.facts.ask(chat(stream=stream), key | scene.headers))
    await scene.struck()
    for gateway in (stage.facts, stage.replay):  # they share one database
        repeat = await gateway.ask(chat(stream=stream), key | scene.headers)
        assert told(repeat) == (409, "request_in_progress", "false")
        assert (repeat.error["partial_output"], repeat.error["delivered_output_tokens"]) == (False, 0)
    for replica in stage.replicas:
        await replica.release()
    answer = await first
    assert answer.is_whole
    assert repeat.request_id == repeat.error["request_id"] == answer.request_id
    assert len(await stage.attempts(answer.request_id)) == 1


async def test_a_repeat_over_http2_meets_the_same_request(stage: KeyStage, key: dict[str, str]) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.MID_DECODE, What.HOLD, deltas=2)
    async with stage.facts.asking(chat(), key | scene.headers) as asking:
        await asking.read_until(b':1 "')
        async with httpx.AsyncClient(http1=False, http2=True, timeout=30) as h2:
            repeat = await h2.post(stage.facts.front + PATHS[Dialect.CHAT], content=chat(), headers=key)
        assert (repeat.http_version, repeat.status_code) == ("HTTP/2", 409)
        assert repeat.json()["error"]["code"] == "request_in_progress"
        for replica in stage.replicas:
            await replica.release()
        assert (await asking.read_to_end()).is_whole


async def test_many_repeats_at_once_run_once(stage: KeyStage, key: dict[str, str]) -> None:
    gateways = [stage.facts, stage.replay] * 10
    answers = await asyncio.gather(*(gateway.ask(chat(), key) for gateway in gateways))
    (request_id,) = {answer.request_id for answer in answers}
    assert len(await stage.attempts(request_id)) == 1
    assert all(answer.is_whole or answer.status == 409 for answer in answers)
    assert len([answer for answer in answers if answer.is_whole and not answer.replayed]) == 1


# ---- after a partial delivery


async def test_after_a_partial_delivery_the_repeat_gets_the_facts(stage: KeyStage, key: dict[str, str]) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.MID_DECODE, What.RESET, deltas=3)
    first = await stage.facts.ask(chat(), key | scene.headers)
    assert first.error["code"] == "upstream_decode_interrupted"
    for gateway in (stage.facts, stage.replay):
        repeat = await gateway.ask(chat(), key | scene.headers)
        assert told(repeat) == (409, "partial_output_exists", "false")
        facts = {
            name: repeat.error[name] for name in ("request_id", "partial_output", "delivered_output_tokens", "reason", "attempts")
        }
        assert facts == {name: first.error[name] for name in facts}
        assert facts["delivered_output_tokens"] == 3
    assert len(await stage.attempts(first.request_id)) == 1


async def test_a_client_that_left_in_the_middle_is_told_so(stage: KeyStage, key: dict[str, str]) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.MID_DECODE, What.HOLD, deltas=2)
    async with stage.facts.asking(chat(), key | scene.headers) as asking:
        await asking.read_until(b':1 "')
        request_id = (await stage.facts.ask(chat(), key | scene.headers)).request_id
    assert (await stage.facts.facts(request_id))["outcome"] == "cancelled"
    repeat = await stage.facts.ask(chat(), key | scene.headers)
    assert told(repeat) == (409, "partial_output_exists", "false")
    assert (repeat.error["delivered_output_tokens"], repeat.error["reason"]) == (2, "client_gone")
    async with asyncio.timeout(LIMIT_S):
        while not (record := (await stage.attempts(request_id))[0])["ended"]:
            await asyncio.sleep(0.02)  # the connection's end reaches the replica when it does
    assert record["ended"] in ("client_gone", "cancelled")
    assert len(await stage.attempts(request_id)) == 1


# ---- after the whole answer


@STREAMED
async def test_after_the_whole_answer_the_repeat_gets_the_facts(stage: KeyStage, key: dict[str, str], stream: bool) -> None:
    first = await stage.facts.ask(chat(stream=stream), key)
    assert first.is_whole
    repeat = await stage.facts.ask(chat(stream=stream), key)
    assert told(repeat) == (409, "request_completed", "false")
    assert (repeat.error["request_id"], repeat.error["delivered_output_tokens"]) == (
        first.request_id,
        TOKENS + (not stream),  # a whole answer's own count has the end of sequence in it
    )
    assert len(await stage.attempts(first.request_id)) == 1


@STREAMED
@pytest.mark.parametrize("dialect", Dialect)
async def test_a_stored_answer_is_replayed_byte_for_byte(
    stage: KeyStage, key: dict[str, str], stream: bool, dialect: Dialect
) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.AFTER_TOKEN_COMPUTED, What.RESET)
    body = request_body(dialect, model="sim-model", stream=stream)
    first, *repeats = [await stage.replay.ask(body, key | scene.headers, PATHS[dialect]) for _ in range(3)]
    assert (first.status, first.attempts, first.replayed) == (200, 2, False)
    ours = {"date", "server", "x-envoy-upstream-service-time", "transfer-encoding", "content-length", names.REPLAYED}
    for repeat in repeats:
        assert (repeat.status, repeat.replayed, repeat.body) == (200, True, first.body)
        assert {name: value for name, value in repeat.headers.items() if name not in ours} == {
            name: value for name, value in first.headers.items() if name not in ours
        }
    assert len(await stage.attempts(first.request_id)) == 2


async def test_an_answer_that_broke_off_is_not_replayed(stage: KeyStage, key: dict[str, str]) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.BEFORE_FINISH, What.RESET)
    first = await stage.replay.ask(chat(), key | scene.headers)
    assert first.error["code"] == "upstream_decode_interrupted"
    assert told(await stage.replay.ask(chat(), key | scene.headers)) == (409, "partial_output_exists", "false")


# ---- after nothing was delivered


@STREAMED
async def test_a_request_that_failed_frees_its_key(stage: KeyStage, key: dict[str, str], stream: bool) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.IN_PREFILL, What.RESET, nth=None)
    failed = await stage.facts.ask(chat(stream=stream), key | scene.headers)
    assert told(failed) == (502, "attempts_exhausted", "false")
    for replica in stage.replicas:
        await replica.set_faults()
    again = await stage.facts.ask(chat(stream=stream), key | scene.headers)
    assert again.is_whole
    assert again.request_id == failed.request_id
    records = await stage.attempts(again.request_id)
    assert len(records) == 3
    # The same bytes of key and body on every attempt (CASES ID-03); all attempts have ids of their own.
    assert {record["headers"][names.IDEMPOTENCY_KEY] for record in records} == {key[names.IDEMPOTENCY_KEY]}
    assert len({record["attempt_id"] for record in records}) == 3


async def test_a_client_that_left_before_the_first_delta_frees_its_key(stage: KeyStage, key: dict[str, str]) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.IN_PREFILL, What.HOLD)
    first = asyncio.create_task(stage.facts.ask(chat(), key | scene.headers))
    await scene.struck()
    request_id = (await stage.facts.ask(chat(), key | scene.headers)).request_id
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (await stage.facts.facts(request_id))["outcome"] == "cancelled"
    again = await stage.facts.ask(chat(), key | scene.headers)
    assert (again.is_whole, again.request_id) == (True, request_id)


# ---- whose key it is


async def test_another_request_under_a_used_key_is_refused(stage: KeyStage, key: dict[str, str]) -> None:
    first = await stage.replay.ask(chat(), key)
    others = [
        await stage.replay.ask(chat(text="Another question."), key),
        await stage.replay.ask(chat(), key, "/v1/chat/completions?again"),
        await stage.replay.ask(request_body(Dialect.COMPLETIONS, model="sim-model", stream=True), key, "/v1/completions"),
    ]
    for other in others:
        assert told(other) == (422, "idempotency_key_reused", "false")
        assert first.request_id not in other.body.decode()
    assert (await stage.replay.ask(chat(), key)).replayed


async def test_a_key_belongs_to_its_caller(stage: KeyStage, key: dict[str, str]) -> None:
    answers = [
        await stage.replay.ask(chat(), key | {"authorization": f"Bearer {caller}"}) for caller in ("alice", "bob", "alice")
    ]
    assert [answer.replayed for answer in answers] == [False, False, True]
    assert answers[0].request_id == answers[2].request_id != answers[1].request_id


@pytest.mark.parametrize(
    "values",
    [['""'], ["two words"], ['"open'], ["a,b"], ["x" * 256], ['"a"', '"b"'], ["\u00e9".encode()]],
    ids=["empty", "spaces", "open", "list", "long", "two", "not-ascii"],
)
async def test_what_is_no_key_is_refused(stage: KeyStage, values: list[str | bytes]) -> None:
    headers = [("content-type", "application/json"), *((names.IDEMPOTENCY_KEY, value) for value in values)]
    response = await stage.facts.http.post(stage.facts.front + PATHS[Dialect.CHAT], content=chat(), headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_idempotency_key")
    assert response.headers[names.SHOULD_RETRY] == "false"


async def test_a_quoted_key_and_a_bare_one_are_the_same(stage: KeyStage, key: dict[str, str]) -> None:
    first = await stage.replay.ask(chat(), key)
    bare = {names.IDEMPOTENCY_KEY: key[names.IDEMPOTENCY_KEY].strip('"')}
    assert (await stage.replay.ask(chat(), bare)).request_id == first.request_id


async def test_an_expired_key_is_new_again(stage: KeyStage, key: dict[str, str], make_database_url, tmp_path: Path) -> None:
    options = ("--", "--key-ttl", "1s")
    policy = {"journal": {"replay": True}}
    async with durable_gateway(stage.replicas, tmp_path / "expiring", make_database_url(), *options, policy=policy) as gateway:
        first = await gateway.ask(chat(), key)
        assert first.is_whole
        async with asyncio.timeout(30):
            while (again := await gateway.ask(chat(), key)).replayed:
                assert again.request_id == first.request_id
                await asyncio.sleep(0.05)
        assert again.is_whole
        assert again.request_id != first.request_id


# ---- the official SDK


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(stage: KeyStage) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{stage.replay.front}/v1", api_key="alice", timeout=30) as client:
        yield client


@STREAMED
async def test_the_sdk_reads_a_replay_like_a_first_answer(
    stage: KeyStage, sdk: openai.AsyncOpenAI, key: dict[str, str], stream: bool
) -> None:
    texts = []
    for _ in range(2):
        if stream:
            chunks = await sdk.chat.completions.create(
                model="sim-model", messages=[{"role": "user", "content": "Hi"}], stream=True, extra_headers=key
            )
            texts.append([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
        else:
            whole = await sdk.chat.completions.create(
                model="sim-model", messages=[{"role": "user", "content": "Hi"}], extra_headers=key
            )
            texts.append([whole.choices[0].message.content or ""])
    assert texts[0] == texts[1]
    assert len("".join(texts[0]).split()) == TOKENS
    assert len(await logged(stage.replicas)) == 1


async def test_the_sdk_raises_what_happened_and_does_not_try_again(
    stage: KeyStage, sdk: openai.AsyncOpenAI, key: dict[str, str]
) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.MID_DECODE, What.RESET, deltas=2)
    ask = {
        "model": "sim-model",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "extra_headers": key | scene.headers,
    }
    with pytest.raises(openai.APIError) as broken:
        async for _ in await sdk.chat.completions.create(**ask):  # type: ignore[call-overload]  (one dictionary for both)
            pass
    assert isinstance(broken.value.body, dict)
    with pytest.raises(openai.ConflictError) as conflict:
        await sdk.chat.completions.create(**ask)  # type: ignore[call-overload]
    body = conflict.value.body
    assert isinstance(body, dict)
    assert (body["code"], body["delivered_output_tokens"], body["retryable"]) == ("partial_output_exists", 2, False)
    assert body["request_id"] == broken.value.body["request_id"]
    with pytest.raises(openai.UnprocessableEntityError):
        await sdk.chat.completions.create(**(ask | {"model": "another"}))  # type: ignore[call-overload]
    assert len(await logged(stage.replicas)) == 1

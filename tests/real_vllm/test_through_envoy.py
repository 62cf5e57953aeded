"""Two real vLLM servers behind the real Envoy, broken where the decision changes (R17.1 to R17.4, R5, R7).

What the servers themselves say is part of each proof: their guards' records, by attempt id, and that their slots are free (R18).
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.links.listening import free_port
from extproc.sim.link import Direction, Link, start_link
from tests.real_vllm.conftest import ENVIRONMENT
from tests.real_vllm.gateway import (
    Gateway,
    Part,
    attempts_at,
    interruption,
    open_gateway,
    process_of,
    stopped,
    until_engine_idles,
    until_state,
    whole_text,
)
from tests.real_vllm.server import CHAT, MODEL, READY_DEADLINE_S, VllmServer, chat, long_prompt

TOKENS = 16
LONG_PREFILL = chat(prompt=long_prompt(6_000), max_tokens=TOKENS) | {"stream_options": {"include_usage": True}}
LONG_DECODE = chat(max_tokens=20_000)
PATIENT: dict[str, Any] = {"lease": {"ttl_ms": 60_000}}
"""A server that a test stops must not become uncertain before the test kills it."""
LEASE_S = 8
SHORT_LEASE: dict[str, Any] = {"lease": {"ttl_ms": LEASE_S * 1_000, "cancel_timeout_ms": 3_000}}
EITHER_PART = pytest.mark.parametrize("part", list(Part))
EITHER_CUT = pytest.mark.parametrize("direction", [Direction.BOTH, Direction.FROM_REPLICA], ids=["both-ways", "towards-gateway"])


@pytest.fixture(scope="module")
def three(launched: list[VllmServer], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VllmServer]]:
    """One server more than is needed: while one is started again after its end, two are left for the next test."""
    third = VllmServer(environment=ENVIRONMENT, model=model, folder=tmp_path_factory.mktemp("vllm"), port=free_port())
    try:
        third.start()
        yield [*launched, third]
    finally:
        third.stop()


@pytest.fixture
async def servers(three: list[VllmServer], session: aiohttp.ClientSession) -> list[VllmServer]:
    """Two of them that are ready and idle."""
    for server in three:
        if server.process is None:
            server.start()
    deadline = time.monotonic() + READY_DEADLINE_S
    while len(ready := [server for server in three if await server.is_ready(session)]) < 2:
        assert time.monotonic() < deadline, [server.log.read_text()[-2000:] for server in three]
        await asyncio.sleep(0.5)
    for server in ready[:2]:
        await server.wait_until_running(session, 0)
    return ready[:2]


@pytest.fixture
async def gateway(servers: list[VllmServer], session: aiohttp.ClientSession, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with open_gateway(servers, session, tmp_path, PATIENT) as opened:
        yield opened


@pytest.fixture
async def cuttable(
    servers: list[VllmServer], session: aiohttp.ClientSession, tmp_path: Path
) -> AsyncIterator[tuple[Gateway, dict[int, Link]]]:
    """A gateway whose every byte to a server goes over a link, by the server's port."""
    async with (
        start_link(servers[0].port) as first,
        start_link(servers[1].port) as second,
        open_gateway(servers, session, tmp_path, SHORT_LEASE, links=(first, second)) as opened,
    ):
        yield opened, {link.replica_port: link for link in (first, second)}


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """What is known already of undisturbed answers."""
    return {}


async def undisturbed(server: VllmServer, session: aiohttp.ClientSession, answers: dict[str, str]) -> str:
    """What a server answers to LONG_PREFILL when nothing breaks, asked without the gateway; greedy, so there is one answer."""
    if "text" not in answers:
        body = {key: value for key, value in LONG_PREFILL.items() if key != "stream_options"} | {"stream": False}
        async with session.post(server.url + CHAT, json=body) as response:
            answers["text"] = (await response.json())["choices"][0]["message"]["content"]
    return answers["text"]


# --- R8: what is known of a server ---


async def test_two_servers_of_one_command_line_may_repeat_each_other(gateway: Gateway, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{gateway.admin}/deltafence/v1/replicas") as answer:
        identities = {replica["identity"] for replica in (await answer.json())["replicas"]}
    (identity,) = map(json.loads, identities)
    assert identity == {"model": MODEL, "root": str(gateway.servers[0].model), "adapters": []}


# --- R17.4: alive, and cut off ---


@EITHER_CUT
async def test_cut_off_in_prefill_a_server_stops_by_itself_before_the_other_begins(
    cuttable: tuple[Gateway, dict[int, Link]], session: aiohttp.ClientSession, answers: dict[str, str], direction: Direction
) -> None:
    gateway, links = cuttable
    request = gateway.ask(LONG_PREFILL)
    cut_off, other = await gateway.asked_and_other()
    before = attempts_at(other)
    with stopped(process_of(cut_off, Part.ENGINE)):  # or its prefill might be over before its lease is
        links[cut_off.port].cut(direction)
        while attempts_at(other).keys() == before.keys():
            assert not request.answer.done(), request.answer
            await asyncio.sleep(0.005)
        at_cut_off = attempts_at(cut_off)
    exchange = await request.answer
    assert whole_text(exchange, tokens=TOKENS) == await undisturbed(other, session, answers)
    first, second = (await gateway.facts(exchange))["attempts"]
    assert (first["cause"], first["fence_proof"]) == ("uncertain", "lease_expired")
    assert at_cut_off[first["attempt_id"]] == "stopped"
    await until_state(other, second["attempt_id"], "finished")
    await cut_off.wait_until_running(session, 0)


@EITHER_CUT
async def test_cut_off_after_the_first_delta_ends_the_stream_and_frees_the_slot(
    cuttable: tuple[Gateway, dict[int, Link]], session: aiohttp.ClientSession, direction: Direction
) -> None:
    gateway, links = cuttable
    request = gateway.ask(LONG_DECODE)
    await request.until_first_delta()
    cut_off, other = await gateway.asked_and_other()
    before = attempts_at(other)
    links[cut_off.port].cut(direction)
    interruption(await request.answer)
    await cut_off.wait_until_running(session, 0)
    (attempt,) = (await gateway.facts(await request.answer))["attempts"]
    await until_state(cut_off, attempt["attempt_id"], "stopped")
    assert attempts_at(other) == before


# --- R5: slow is not dead ---


async def test_a_stopped_engine_keeps_its_request_while_its_lease_is_renewed(
    servers: list[VllmServer], session: aiohttp.ClientSession, tmp_path: Path, answers: dict[str, str]
) -> None:
    async with open_gateway(servers, session, tmp_path, SHORT_LEASE) as gateway:
        request = gateway.ask(LONG_PREFILL)
        slow, other = await gateway.asked_and_other()
        before = attempts_at(other)
        with stopped(process_of(slow, Part.ENGINE)):
            # Not a wait for something to happen: for that long nothing may happen.
            await asyncio.wait({request.answer}, timeout=2 * LEASE_S)
            assert not request.answer.done(), request.answer
        exchange = await request.answer
        assert whole_text(exchange, tokens=TOKENS) == await undisturbed(other, session, answers)
        assert len((await gateway.facts(exchange))["attempts"]) == 1
        assert attempts_at(other) == before


async def test_a_stopped_engine_costs_its_client_the_deadline_and_no_other_servers_time(
    servers: list[VllmServer], session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    deadline = SHORT_LEASE | {"deadlines": {"first_delta_ms": 15_000}}
    async with open_gateway(servers, session, tmp_path, deadline) as gateway:
        request = gateway.ask(LONG_PREFILL)
        slow, other = await gateway.asked_and_other()
        before = attempts_at(other)
        with stopped(process_of(slow, Part.ENGINE)):
            exchange = await request.answer
        assert (exchange.status, b"first_delta_deadline_exceeded" in exchange.body) == (504, True)
        facts = await gateway.facts(exchange)
        (attempt,) = facts["attempts"]
        assert attempts_at(other) == before
        await slow.wait_until_running(session, 0)
        await until_state(slow, attempt["attempt_id"], "stopped")


# --- R5: client gone ---


@pytest.mark.parametrize("body", [LONG_PREFILL, LONG_DECODE], ids=["in-prefill", "mid-stream"])
async def test_a_client_that_leaves_frees_the_slot_and_starts_nothing(
    gateway: Gateway, session: aiohttp.ClientSession, body: dict[str, Any]
) -> None:
    request = gateway.ask(body)
    if body is LONG_DECODE:
        await request.until_first_delta()
    asked, other = await gateway.asked_and_other()
    at_asked, at_other = attempts_at(asked), attempts_at(other)
    await request.leave()
    await asked.wait_until_running(session, 0)
    (attempt_id,) = (attempt_id for attempt_id, state in at_asked.items() if state == "running")
    await until_state(asked, attempt_id, "stopped")
    assert attempts_at(other) == at_other


# --- R17.1 and R17.2: killed before anything was delivered ---


@EITHER_PART
async def test_killed_in_prefill_gives_one_whole_answer_from_the_other(
    gateway: Gateway, session: aiohttp.ClientSession, answers: dict[str, str], part: Part
) -> None:
    request = gateway.ask(LONG_PREFILL)
    broken, other = await gateway.asked_and_other()
    try:
        os.kill(process_of(broken, part), signal.SIGKILL)
        exchange = await request.answer
        first, second = (await gateway.facts(exchange))["attempts"]
        assert first["attempt_id"] in attempts_at(broken)
    finally:
        broken.stop()
    assert whole_text(exchange, tokens=TOKENS) == await undisturbed(other, session, answers)
    assert first["fence_proof"] == {Part.API_SERVER: "connection_refused", Part.ENGINE: "ended_by_itself"}[part]
    await until_state(other, second["attempt_id"], "finished")


async def test_killed_with_every_token_computed_and_none_sent_gives_the_others_answer_alone(
    gateway: Gateway, session: aiohttp.ClientSession, answers: dict[str, str]
) -> None:
    """The API server is stopped in prefill, so nothing that the engine computes leaves it before it is killed."""
    request = gateway.ask(LONG_PREFILL)
    broken, other = await gateway.asked_and_other()
    try:
        with stopped(process_of(broken, Part.API_SERVER)):
            await until_engine_idles(broken)
            os.kill(process_of(broken, Part.API_SERVER), signal.SIGKILL)
        exchange = await request.answer
    finally:
        broken.stop()
    assert whole_text(exchange, tokens=TOKENS) == await undisturbed(other, session, answers)
    first, second = (await gateway.facts(exchange))["attempts"]
    assert first["fence_proof"] == "connection_refused"
    await until_state(other, second["attempt_id"], "finished")


async def test_engine_killed_with_every_token_on_its_way_gives_one_whole_answer(
    gateway: Gateway, session: aiohttp.ClientSession, answers: dict[str, str]
) -> None:
    """Whether the API server sees the tokens or the death of its engine first is its own affair; answers are never joined."""
    request = gateway.ask(LONG_PREFILL)
    broken, other = await gateway.asked_and_other()
    try:
        with stopped(process_of(broken, Part.API_SERVER)):
            await until_engine_idles(broken)
            os.kill(process_of(broken, Part.ENGINE), signal.SIGKILL)
        exchange = await request.answer
    finally:
        broken.stop()
    assert whole_text(exchange, tokens=TOKENS) == await undisturbed(other, session, answers)
    proofs = [attempt["fence_proof"] for attempt in (await gateway.facts(exchange))["attempts"]]
    assert proofs in ([None], ["ended_by_itself", None])


# --- R17.3: killed after the first delta ---


@EITHER_PART
async def test_killed_after_the_first_delta_ends_the_stream_and_starts_nothing(
    gateway: Gateway, session: aiohttp.ClientSession, part: Part
) -> None:
    request = gateway.ask(LONG_DECODE)
    await request.until_first_delta()
    broken, other = await gateway.asked_and_other()
    before = attempts_at(other)
    try:
        os.kill(process_of(broken, part), signal.SIGKILL)
        exchange = await request.answer
    finally:
        broken.stop()
    interruption(exchange)
    facts = await gateway.facts(exchange)
    assert (facts["outcome"], len(facts["attempts"])) == ("interrupted", 1)
    assert attempts_at(other) == before
    assert await other.running(session) == 0

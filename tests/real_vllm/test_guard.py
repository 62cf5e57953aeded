"""The guard inside a real vLLM: it loads as middleware, a cancel frees the slot, and so does a lease that runs out (R6, R7)."""

import asyncio
import json

import aiohttp
import pytest

from extproc.contract import headers
from extproc.contract.guard import FACTS_PATH
from extproc.decision.identity import read_cache_config, read_models
from tests.real_vllm.gateway import stopped
from tests.real_vllm.server import CHAT, MODEL, SECRET, VllmServer, chat, long_prompt

ENDLESS = 30_000
"""Tokens; more than is generated within any test."""
LONG_TTL_MS = 60_000


async def read_first_delta(response: aiohttp.ClientResponse) -> None:
    """Past the role chunk."""
    async for line in response.content:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("role") is None:
            return
    raise AssertionError("the stream ended before its first delta")


async def start(
    server: VllmServer, session: aiohttp.ClientSession, attempt_id: str, *, ttl_ms: int = LONG_TTL_MS
) -> aiohttp.ClientResponse:
    """An attempt whose first delta has arrived."""
    lease = await server.lease(session, attempt_id, ttl_ms=ttl_ms)
    response = await session.post(server.url + CHAT, headers=lease, json=chat(max_tokens=ENDLESS))
    assert response.status == 200, await response.text()
    await read_first_delta(response)
    return response


async def test_request_without_a_lease_is_served_as_ever(server: VllmServer, session: aiohttp.ClientSession) -> None:
    async with session.post(server.url + CHAT, json=chat(max_tokens=4, stream=False)) as response:
        body = await response.json()
    assert body["usage"]["completion_tokens"] == 4
    assert headers.BOOT_ID not in response.headers


async def test_attempt_is_answered_whole_and_stamped(server: VllmServer, session: aiohttp.ClientSession) -> None:
    lease = await server.lease(session, "att_whole", ttl_ms=LONG_TTL_MS)
    async with session.post(server.url + CHAT, headers=lease, json=chat(max_tokens=8)) as response:
        body = await response.text()
    assert body.endswith("data: [DONE]\n\n")
    assert response.headers[headers.BOOT_ID] == lease[headers.BOOT_ID]


async def test_replicas_of_one_model_give_one_answer(servers: list[VllmServer], session: aiohttp.ClientSession) -> None:
    answers = []
    for server in servers:
        async with session.post(server.url + CHAT, json=chat(max_tokens=32, stream=False)) as response:
            answers.append((await response.json())["choices"][0]["message"]["content"])
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 5  # a text, not one token again and again


async def test_cancel_mid_stream_frees_the_slot(server: VllmServer, session: aiohttp.ClientSession) -> None:
    response = await start(server, session, "att_cancelled")
    await server.wait_until_running(session, 1)
    answer = await server.cancel(session, "att_cancelled")
    assert answer["state"] == "stopped"
    assert answer["published_chunks"] >= 1
    with pytest.raises(aiohttp.ClientPayloadError):
        await response.read()
    await server.wait_until_running(session, 0)


async def test_cancel_in_prefill_frees_the_slot_and_nothing_was_published(
    server: VllmServer, session: aiohttp.ClientSession
) -> None:
    lease = await server.lease(session, "att_prefill", ttl_ms=LONG_TTL_MS)
    body = chat(prompt=long_prompt(20_000), max_tokens=8)
    request = asyncio.create_task(session.post(server.url + CHAT, headers=lease, json=body))
    await server.wait_until_running(session, 1)
    answer = await server.cancel(session, "att_prefill")
    assert answer["state"] == "stopped"
    async with await request as response:
        text = (await response.content.read()).decode() if response.status != 200 else ""
    assert response.status == 200 or json.loads(text)["refusal"] == "revoked"
    await server.wait_until_running(session, 0)


async def test_lease_that_runs_out_frees_the_slot_by_itself(server: VllmServer, session: aiohttp.ClientSession) -> None:
    """Nobody cancels, nobody closes: the connection stays open and read, as across a network that is cut for renewals only."""
    response = await start(server, session, "att_expired", ttl_ms=10_000)
    with pytest.raises(aiohttp.ClientPayloadError):
        await response.read()
    await server.wait_until_running(session, 0)


async def test_lease_that_runs_out_in_a_silent_prefill_frees_the_slot_too(
    server: VllmServer, session: aiohttp.ClientSession
) -> None:
    lease = await server.lease(session, "att_silent", ttl_ms=8_000)
    body = chat(prompt=long_prompt(20_000), max_tokens=8)
    request = asyncio.create_task(session.post(server.url + CHAT, headers=lease, json=body))
    await server.wait_until_running(session, 1)
    with stopped(server.engine_pid()):
        async with await request as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
    await server.wait_until_running(session, 0)
    assert (await server.cancel(session, "att_silent"))["state"] == "stopped"


async def test_cancel_before_arrival_keeps_the_attempt_out(server: VllmServer, session: aiohttp.ClientSession) -> None:
    lease = await server.lease(session, "att_late", ttl_ms=LONG_TTL_MS)
    assert (await server.cancel(session, "att_late"))["state"] == "never_started"
    async with session.post(server.url + CHAT, headers=lease, json=chat()) as response:
        assert (response.status, response.headers[headers.REFUSAL]) == (409, "tombstoned")


async def test_identity_is_read_from_what_vllm_shows(server: VllmServer, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{server.url}/v1/models") as response:
        models = read_models(await response.json())
    async with session.get(f"{server.url}/metrics") as response:
        cache = read_cache_config(await response.text())
    assert (models.model, models.adapters) == (MODEL, ())
    assert cache.block_size is not None
    assert cache.kv_cache_dtype is not None


async def test_guard_tells_of_the_command_line_what_concerns_the_model(
    server: VllmServer, session: aiohttp.ClientSession
) -> None:
    async with session.get(server.url + FACTS_PATH, headers=SECRET) as response:
        told = (await response.json())["facts"]
    assert told == {"model": MODEL, "root": str(server.model), "dtype": "float32"}

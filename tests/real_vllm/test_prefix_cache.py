"""A warm prefix cache changes no answer of a real vLLM: with temperature 0 and one seed, cold and warm give the same tokens (R8).

A repeat may meet a cold cache where the first attempt met a warm one, or the other way round. Equal identities promise that this
makes no difference; were it otherwise, these tests would name the lengths, and hold only if the identities were unequal.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.decision.identity import Facts, read_cache_config, read_models
from tests.real_vllm.conftest import ENVIRONMENT
from tests.real_vllm.server import MODEL, VllmServer, served

COMPLETIONS = "/v1/completions"
TOKENS = 24
BLOCKS = (1, 2, 3)
VOCABULARY = range(2, 500)
"""Of the tiny model, without its two special tokens."""


@pytest.fixture(scope="module")
def caching_one(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with served(model, tmp_path_factory.mktemp("vllm"), ENVIRONMENT, "--enable-prefix-caching") as server:
        yield server


@pytest.fixture
async def caching(caching_one: VllmServer, session: aiohttp.ClientSession) -> VllmServer:
    """A server with a prefix cache, ready."""
    await caching_one.wait_until_ready(session)
    return caching_one


async def metrics(server: VllmServer, session: aiohttp.ClientSession) -> str:
    async with session.get(f"{server.url}/metrics") as response:
        return await response.text()


async def hits(server: VllmServer, session: aiohttp.ClientSession) -> float:
    """Prompt tokens that the cache has saved so far."""
    values = re.findall(r"^vllm:prefix_cache_hits_total\{[^}]*\} (\S+)$", await metrics(server, session), re.MULTILINE)
    assert values
    return sum(map(float, values))


async def facts(server: VllmServer, session: aiohttp.ClientSession) -> Facts:
    """What the gateway learns from the server itself."""
    async with session.get(f"{server.url}/v1/models") as response:
        shown = read_models(await response.json())
    return shown.merged(read_cache_config(await metrics(server, session)))


def prompt(length: int) -> list[int]:
    """So many tokens; no two lengths share a beginning."""
    return [VOCABULARY[(length * 31 + position * 17 + position * position) % len(VOCABULARY)] for position in range(length)]


async def ask(server: VllmServer, session: aiohttp.ClientSession, length: int, salt: str) -> list[int]:
    """The tokens of a greedy answer. Prompts share blocks of the cache only under one salt, so a new one is cold."""
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": prompt(length),
        "max_tokens": TOKENS,
        "temperature": 0,
        "seed": 7,
        "ignore_eos": True,
        "return_token_ids": True,
        "cache_salt": salt,
    }
    async with session.post(server.url + COMPLETIONS, json=body) as response:
        assert response.status == 200, await response.text()
        tokens: list[int] = (await response.json())["choices"][0]["token_ids"]
    assert len(tokens) == TOKENS
    return tokens


async def lengths(server: VllmServer, session: aiohttp.ClientSession) -> tuple[int, list[int]]:
    """The block size, and lengths on both sides of block boundaries and on them."""
    block = (await facts(server, session)).block_size
    assert block is not None
    return block, [count * block + beside for count in BLOCKS for beside in (-1, 0, 1)]


async def test_cold_and_warm_prefix_cache_give_the_same_tokens(caching: VllmServer, session: aiohttp.ClientSession) -> None:
    block, straddling = await lengths(caching, session)
    differing = []
    for length in straddling:
        before = await hits(caching, session)
        cold = await ask(caching, session, length, "first")
        between = await hits(caching, session)
        warm = await ask(caching, session, length, "first")
        # Whole blocks only, and never the last token, whose output is wanted. Otherwise nothing was tested.
        assert between - before == 0
        assert await hits(caching, session) - between == (length - 1) // block * block
        if not cold == warm == await ask(caching, session, length, "second"):
            differing.append(length)
    assert differing == [], (
        f"prompts of {differing} tokens get other answers from a warm cache, and identities know nothing of it"
    )


async def test_replica_without_a_prefix_cache_gives_them_too_where_identities_are_equal(
    caching: VllmServer, server: VllmServer, session: aiohttp.ClientSession
) -> None:
    _, straddling = await lengths(caching, session)
    differing = [
        length
        for length in straddling
        # The second time the cache is warm, whether or not the other test was here before.
        if (await ask(caching, session, length, "third"), await ask(caching, session, length, "third"))
        != (plain := await ask(server, session, length, "third"), plain)
    ]
    ours, theirs = await facts(caching, session), await facts(server, session)
    assert differing == [] or ours.identity != theirs.identity, (
        f"equal identities, and prompts of {differing} tokens get different answers"
    )
    assert ours.identity == theirs.identity  # the case that matters is the one that is tested

"""What a replica tells of its model, from each of the places where it may (R8)."""

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from extproc.contract.guard import FACTS_PATH
from extproc.decision.identity import Facts
from extproc.replicas.guard_client import GuardClient
from extproc.replicas.shown_facts import FactsKeptBackError, FactsUnreadableError, ShownFacts
from tests.unit.replicas.scripted_guard import TOKEN, Clock
from tests.unit.scripted_replica import ScriptedReplica

CARD = {"id": "llama", "root": "/models/llama", "parent": None}
FLAGS = {"model": "/models/llama", "root": "/models/llama", "revision": "3f1c", "block_size": 16}
CACHE = b'vllm:cache_config_info{block_size="32",cache_dtype="fp8"} 1.0\n'


@pytest.fixture
async def replica() -> AsyncIterator[ScriptedReplica]:
    async with ScriptedReplica().serving() as replica:
        replica.serve(json.dumps({"data": [CARD]}).encode(), "/v1/models")
        yield replica


@pytest.fixture
async def shown() -> AsyncIterator[ShownFacts]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield ShownFacts(guards=GuardClient(session=session, token=TOKEN, clock_ms=Clock()))


def tell_flags(replica: ScriptedReplica, flags: object = FLAGS, status: int = 200) -> None:
    replica.serve(json.dumps({"boot_id": "b", "now_ms": 1, "facts": flags}).encode(), FACTS_PATH, status)


async def test_a_bare_server_shows_its_model(replica: ScriptedReplica, shown: ShownFacts) -> None:
    assert (await shown.read(replica.url)).facts == Facts(model="llama", root="/models/llama", adapters=())


async def test_what_runs_comes_before_what_was_asked_for(replica: ScriptedReplica, shown: ShownFacts) -> None:
    replica.serve(CACHE)
    tell_flags(replica)
    assert (await shown.read(replica.url)).facts == Facts(
        model="llama", root="/models/llama", revision="3f1c", adapters=(), block_size=32, kv_cache_dtype="fp8"
    )


async def test_the_guard_names_the_process_and_is_asked_before_all_the_rest(replica: ScriptedReplica, shown: ShownFacts) -> None:
    assert (await shown.read(replica.url)).boot_id is None
    tell_flags(replica)
    replica.asked.clear()
    assert (await shown.read(replica.url)).boot_id == "b"
    assert [asked.split(" ")[-1] for asked in replica.asked] == [FACTS_PATH, "/v1/models", "/metrics"]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_flags_do_where_the_models_are_kept_from_us(replica: ScriptedReplica, shown: ShownFacts, status: int) -> None:
    replica.serve(b"", "/v1/models", status)
    tell_flags(replica)
    assert (await shown.read(replica.url)).facts.revision == "3f1c"


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_guard_that_does_not_know_us_tells_nothing(replica: ScriptedReplica, shown: ShownFacts, status: int) -> None:
    tell_flags(replica, status=status)
    assert (await shown.read(replica.url)).facts.revision is None


async def test_where_nobody_says_anything_nothing_is_known(replica: ScriptedReplica, shown: ShownFacts) -> None:
    replica.serve(b"", "/v1/models", 401)
    with pytest.raises(FactsKeptBackError, match="not open to the gateway"):
        await shown.read(replica.url)


@pytest.mark.parametrize(("body", "status"), [(b"", 500), (b"", 302), (b"{", 200), (b'{"data": []}', 200)])
async def test_a_broken_answer_is_not_an_answer(replica: ScriptedReplica, shown: ShownFacts, body: bytes, status: int) -> None:
    replica.serve(body, "/v1/models", status)
    tell_flags(replica)
    with pytest.raises(FactsUnreadableError):
        await shown.read(replica.url)


@pytest.mark.parametrize(("flags", "status"), [(FLAGS, 503), ([], 200), ({"block_size": "many"}, 200)])
async def test_a_guard_that_fails_leaves_the_whole_unread(
    replica: ScriptedReplica, shown: ShownFacts, flags: object, status: int
) -> None:
    """Facts without its part would be another identity, and the next look would change it back."""
    tell_flags(replica, flags, status)
    with pytest.raises(FactsUnreadableError):
        await shown.read(replica.url)


async def test_a_server_without_a_metrics_page_is_as_good_as_any(replica: ScriptedReplica, shown: ShownFacts) -> None:
    replica.serve(b"", "/metrics", 500)
    assert (await shown.read(replica.url)).facts.model == "llama"


async def test_a_refused_connection_is_unreadable(replica: ScriptedReplica, shown: ShownFacts) -> None:
    await replica.stop_listening()
    with pytest.raises(FactsUnreadableError):
        await shown.read(replica.url)

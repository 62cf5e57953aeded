"""A repeat never goes to a replica that serves something else, through the real Envoy (R8)."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extproc.app.demonstration.apis import QUESTION
from extproc.links.listening import free_ports
from extproc.sim.faults import Fault, What, Where
from extproc.sim.settings import Settings
from tests.real_envoy.leased import Leased, guarded, leased

POLICY: dict[str, Any] = {"retry_budget": {"percent": 100, "min_per_second": 100, "burst": 1_000}}
EVERY_QUESTION_FAILS = Fault(where=Where.AFTER_ROLE, what=What.ERROR_EVENT, body_contains=QUESTION)
REQUESTS = 6
OTHERS = {
    "root": replace(guarded("b"), root="/models/another"),
    "model": replace(guarded("b"), model="another-model"),
    "adapters": replace(guarded("b"), adapters=("sql",)),
}


@asynccontextmanager
async def first_one_failing(tmp_path: Path, settings: Sequence[Settings], *options: str) -> AsyncIterator[Leased]:
    async with leased(tmp_path, settings, POLICY, *options, over_links=False) as stage:
        await stage.hosts[0].replica.set_faults(EVERY_QUESTION_FAILS)
        yield stage


async def paths(stage: Leased) -> set[tuple[str, ...]]:
    """Ask some questions; which replicas each of them went to, by name, in order."""
    names = {host.replica.address: host.replica.settings.name for host in stage.hosts}
    found = set()
    for _ in range(REQUESTS):
        exchange = await stage.ask().answer
        attempts = (await stage.facts(exchange.request_id))["attempts"]
        found.add(tuple(names[attempt["replica"]] for attempt in attempts))
    return found


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_only_an_equal_replica_repeats(tmp_path: Path, other: Settings) -> None:
    async with first_one_failing(tmp_path, [guarded("a"), other, guarded("c")]) as stage:
        assert ("a", "c") in (found := await paths(stage))
        assert not [path for path in found if len(path) > 1 and path != ("a", "c")]


async def test_without_an_equal_replica_the_client_gets_an_honest_error(tmp_path: Path) -> None:
    async with first_one_failing(tmp_path, [guarded("a"), OTHERS["root"]]) as stage:
        exchanges = [await stage.ask().answer for _ in range(REQUESTS)]
        refused = [exchange for exchange in exchanges if exchange.status != 200]
        assert refused
        for exchange in refused:
            assert (exchange.status, exchange.attempts) == (503, 1)
            assert json.loads(exchange.body)["error"]["code"] == "no_healthy_replica"
            (attempt,) = (await stage.facts(exchange.request_id))["attempts"]
            assert attempt["replica"] == stage.hosts[0].replica.address


async def test_what_the_operator_declares_tells_replicas_apart(tmp_path: Path) -> None:
    replicas = [guarded(name, port=port) for name, port in zip("abc", free_ports(3), strict=True)]
    revisions = zip((f"http://127.0.0.1:{replica.port}" for replica in replicas), "121", strict=True)
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({url: {"revision": revision} for url, revision in revisions}))
    async with first_one_failing(tmp_path, replicas, "--replica-facts", str(facts)) as stage:
        assert ("a", "c") in (found := await paths(stage))
        assert not [path for path in found if len(path) > 1 and path != ("a", "c")]


@pytest.mark.parametrize("guard", [True, False], ids=["its guard tells", "health sees"])
async def test_a_replica_that_comes_back_with_another_model_repeats_nothing_any_more(tmp_path: Path, guard: bool) -> None:
    replicas = [replace(guarded(name), guard=guard) for name in "ab"]
    async with first_one_failing(tmp_path, replicas, "--health-interval", "500ms") as stage:
        assert ("a", "b") in await paths(stage)
        second = stage.hosts[1].replica
        learnt = await stage.identity_of(second)
        second.settings = replace(second.settings, root="/models/another")
        await second.restart()
        await stage.until_identity(second, lambda identity: "/models/another" in identity)
        assert learnt == await stage.identity_of(stage.hosts[0].replica)
        assert ("a", "b") not in await paths(stage)


async def test_the_journal_names_what_was_served(tmp_path: Path) -> None:
    async with leased(tmp_path, [guarded("a", root="/models/llama", adapters=("sql",))], POLICY) as stage:
        exchange, _ = await stage.whole_text(stage.ask())
        served = json.loads((await stage.facts(exchange.request_id))["model_revision"])
        assert served == {"model": "sim-model", "root": "/models/llama", "adapters": ["sql=sql"]}

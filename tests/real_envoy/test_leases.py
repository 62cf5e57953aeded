"""Leases through the real Envoy: slow is not dead, a restart is a proof, and a client that leaves takes its work with it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from extproc.app.demonstration.apis import request_body
from extproc.contract import headers
from extproc.sim.process import start_replica
from extproc.sim.request_log import Ended
from extproc.sse.dialects import Dialect
from tests.real_envoy.leased import LIMIT_S, POLL_S, STALLED_PREFILL, guarded, kinds, leased

SHORT: dict[str, Any] = {"lease": {"ttl_ms": 6_000, "cancel_timeout_ms": 3_000}}
LONG: dict[str, Any] = {"lease": {"ttl_ms": 30_000, "cancel_timeout_ms": 500}}
STOPPED = (Ended.CANCELLED, Ended.CLIENT_GONE)
OUR_HEADERS_FOR_CLIENTS = {headers.REQUEST_ID, headers.ATTEMPTS}


async def test_a_prefill_of_several_leases_with_late_heartbeats_is_left_alone(tmp_path: Path) -> None:
    slow = [guarded(name, prefill_us_per_token=2_600) for name in "ab"]
    question = {"model": "sim-model", "stream": True, "messages": [{"role": "user", "content": "word " * 5_000}]}
    async with leased(tmp_path, slow, SHORT) as stage:
        for host in stage.hosts:
            host.link.delay_s = 0.15
        exchange, _ = await stage.whole_text(stage.ask(json.dumps(question).encode()))
        (record,) = await stage.records(exchange.request_id)
        assert record["first_token_at"] - record["received_at"] > 2 * SHORT["lease"]["ttl_ms"] / 1000
        (attempt,) = (await stage.facts(exchange.request_id))["attempts"]
        assert (attempt["attempt_id"], attempt["cause"]) == (record["attempt_id"], None)


async def test_a_replica_that_dies_between_its_grant_and_the_request_was_never_asked(tmp_path: Path) -> None:
    """Its last stamp still grants leases, and health has not looked since."""
    hosts = [guarded("a"), guarded("b")]
    async with leased(tmp_path, hosts, LONG, "--health-interval", "60s", over_links=False) as stage:
        await stage.whole_text(stage.ask())
        await stage.whole_text(stage.ask())
        stage.hosts[0].replica.kill()
        exchanges = [(await stage.whole_text(stage.ask()))[0] for _ in range(2)]
        (repeated,) = (exchange for exchange in exchanges if exchange.attempts == 2)
        first, second = (await stage.facts(repeated.request_id))["attempts"]
        assert (first["cause"], first["fence_proof"], second["cause"]) == ("never_started", "not_started", None)


async def test_a_new_boot_id_at_the_old_address_fences_the_attempt_of_the_old_process(tmp_path: Path) -> None:
    async with (
        leased(tmp_path, [guarded("a"), guarded("b")], LONG) as stage,
        start_replica(replace(stage.hosts[0].replica.settings, port=0)) as successor,
    ):
        host = stage.hosts[0]
        await host.replica.set_faults(STALLED_PREFILL)
        request, request_id = await stage.ask_at(host)
        host.link.replica_port = successor.port
        host.replica.kill()
        exchange, text = await stage.whole_text(request)
        assert (exchange.request_id, text.split()[0]) == (request_id, "b:0")
        first, second = (await stage.facts(request_id))["attempts"]
        assert (first["cause"], first["fence_proof"], second["cause"]) == ("replica_gone", "boot_changed", None)
        assert not [record for record in await successor.log() if record["request_id"] == request_id]


async def test_a_client_that_leaves_before_the_first_delta_frees_the_slot(tmp_path: Path) -> None:
    async with leased(tmp_path, [guarded("a"), guarded("b")], LONG) as stage:
        await stage.hosts[0].replica.set_faults(STALLED_PREFILL)
        request, request_id = await stage.ask_at(stage.hosts[0])
        await request.leave()
        (record,) = await stage.records(request_id)
        assert record["ended"] in STOPPED
        assert record["slot_freed_at"] is not None
        facts = await stage.until_event(request_id, "ended")
        assert (facts["outcome"], len(facts["attempts"])) == ("cancelled", 1)
        assert "cancel_sent" in kinds(facts)


async def test_a_client_that_leaves_while_a_fence_is_waited_for_starts_nothing(tmp_path: Path) -> None:
    """The attempt's connection is closed, and no cancel gets through: only the lease's end will be a proof."""
    async with leased(tmp_path, [guarded("a"), guarded("b")], LONG) as stage:
        host = stage.hosts[0]
        await host.replica.set_faults(STALLED_PREFILL)
        request, request_id = await stage.ask_at(host)
        host.link.cut()
        await host.link.drop()
        await stage.until_event(request_id, "attempt_failed")
        await request.leave()
        facts = await stage.until_event(request_id, "ended")
        assert (facts["outcome"], len(facts["attempts"])) == ("cancelled", 1)
        assert "fenced" not in kinds(facts)
        (record,) = await stage.records(request_id)
        assert record["ended"] in STOPPED


async def test_what_guard_and_gateway_say_to_each_other_never_reaches_a_client(tmp_path: Path) -> None:
    async with leased(tmp_path, [guarded("a")], LONG) as stage:
        streamed, _ = await stage.whole_text(stage.ask())
        whole = await stage.ask(request_body(Dialect.CHAT, model="sim-model", stream=False)).answer
        refused = await stage.ask(b'{"model": "sim-model"}').answer
        assert [exchange.status for exchange in (streamed, whole, refused)] == [200, 200, 400]
        for exchange in (streamed, whole, refused):
            assert {name for name in exchange.headers if name.startswith(headers.PREFIX)} == OUR_HEADERS_FOR_CLIENTS
            (record,) = await stage.records(exchange.request_id)
            assert headers.BOOT_ID in record["headers"]


async def test_a_guard_with_another_secret_is_named_and_its_replica_serves_without_leases(tmp_path: Path) -> None:
    async with leased(tmp_path, [guarded("a")], LONG, token="another secret") as stage:
        exchange, _ = await stage.whole_text(stage.ask())
        (record,) = await stage.records(exchange.request_id)
        assert headers.BOOT_ID not in record["headers"]
        (complaint,) = (line for line in stage.log.read_text().splitlines() if "refuses our token" in line)
        assert stage.hosts[0].url in complaint
        assert "--token-file must hold what DELTAFENCE_TOKEN" in complaint


def _guards_in(log: str) -> set[str]:
    return {line.partition("guard at ")[2] for line in log.splitlines() if "guard at " in line}


async def test_every_guard_is_reported_at_the_start(tmp_path: Path) -> None:
    bare = replace(guarded("b"), guard=False)
    async with leased(tmp_path, [guarded("a"), bare], LONG) as stage:
        with_guard, without = (host.url for host in stage.hosts)
        async with asyncio.timeout(LIMIT_S):
            while not {f"{with_guard}: present", f"{without}: absent"} <= _guards_in(stage.log.read_text()):
                await asyncio.sleep(POLL_S)

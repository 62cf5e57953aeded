"""A mesh's own access log tells the same story as the journal: ids, phase, outcome and reason, on both listeners (R4)."""

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from extproc.app.demonstration.apis import request_body
from extproc.contract.headers import REQUEST_ID
from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect
from tests.telemetry.running import PATH, Running, running


@dataclass
class Logged:
    gateway: Running
    access_log: Path

    async def lines(self) -> list[dict[str, Any]]:
        """Of generations, after the gateway has ended, when everything is written."""
        await self.gateway.stop()
        lines = [json.loads(line) for line in self.access_log.read_text().splitlines()]
        return [line for line in lines if line["path"] == PATH]

    async def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The front's line and the egress's."""
        front, egress = sorted(await self.lines(), key=lambda line: str(line["listener"]), reverse=True)
        assert (front["listener"], egress["listener"]) == ("front", "egress")
        return front, egress


@asynccontextmanager
async def logged(directory: Path, settings: Settings):
    async with start_replica(settings) as replica:
        access_log = directory / "access.log"
        async with running("--replica", replica.url, "--access-log", access_log, directory=directory) as gateway:
            yield Logged(gateway, access_log)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_completed_answer_is_completed_also_where_the_client_closes_at_once(tmp_path, stream: bool) -> None:
    async with logged(tmp_path, Settings(tokens=4)) as log:
        answer = await log.gateway.chat(stream=stream, connection="close")
        front, egress = await log.both()

    assert (front["phase"], front["outcome"], front["reason"]) == ("ended", "completed", "finished")
    assert front["request_id"] == egress["request_id"] == answer.headers["x-deltafence-request-id"]
    assert front["attempt_id"] == egress["attempt_id"]
    assert front["attempts"] == 1
    assert front["delivered_output_tokens"] > 0
    assert egress["replica"] == egress["destination"]


async def test_interrupted_stream_says_so_beside_envoys_200(tmp_path) -> None:
    reset = Fault(where=Where.MID_DECODE, what=What.RESET, times=1, header=REQUEST_ID)
    async with logged(tmp_path, Settings(tokens=8, faults=(reset,))) as log:
        await log.gateway.chat()
        front, egress = await log.both()

    assert (front["status"], front["details"]) == (200, "ext_proc_local_response")
    assert (front["phase"], front["outcome"], front["reason"]) == ("ended", "interrupted", "replica_gone")
    assert front["attempt_id"] == egress["attempt_id"]
    assert egress["details"].startswith("upstream_reset_after_response_started")


async def test_client_that_leaves_mid_stream_is_a_disconnect_in_decode(tmp_path) -> None:
    async with logged(tmp_path, Settings(tokens=8, token_interval_ms=60_000)) as log:
        body = request_body(Dialect.CHAT, model="sim-model", stream=True)
        async with (
            httpx.AsyncClient(timeout=30) as client,
            client.stream("POST", log.gateway.front + PATH, content=body) as answer,
        ):
            await anext(answer.aiter_bytes())
        front, egress = await log.both()

    assert (front["flags"], front["phase"], front["outcome"]) == ("DC", "decode", None)
    assert front["request_id"] == egress["request_id"]
    assert front["attempt_id"] == egress["attempt_id"]


async def test_request_that_was_turned_away_has_its_id_and_reason(tmp_path) -> None:
    async with logged(tmp_path, Settings()) as log:
        await log.gateway.chat(b"[1]")
        (front,) = await log.lines()
    assert (front["status"], front["outcome"], front["reason"]) == (400, "failed", "invalid_request_body")
    assert front["request_id"].startswith("req_")

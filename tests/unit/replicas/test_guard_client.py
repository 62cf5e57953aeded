"""What an answer of a guard, or none, is taken for."""

import asyncio

import pytest

from extproc.contract.guard import HeartbeatRequest, StopState
from extproc.decision.lease import Stamp
from extproc.replicas.guard_client import (
    GuardAbsentError,
    GuardClient,
    GuardUnheardError,
    NotListeningError,
    TokenRefusedError,
)
from tests.unit.replicas.scripted_guard import Clock, ScriptedGuard

EMPTY = HeartbeatRequest(processor_id="gateway-1", leases=[])


async def test_stamp_lies_between_question_and_receipt(guard: ScriptedGuard, client: GuardClient, clock: Clock) -> None:
    guard.is_answering.clear()
    beating = asyncio.create_task(client.beat(guard.url, EMPTY, timeout_ms=5_000))
    await guard.heard(beats=1)
    clock.now_ms += 40
    guard.is_answering.set()
    stamp = await beating
    assert stamp == Stamp(boot_id="boot_a", now_ms=guard.now_ms, asked_at_ms=70_000, received_at_ms=70_040)


async def test_cancel_says_how_the_attempt_ended(guard: ScriptedGuard, client: GuardClient) -> None:
    guard.cancel_state = "never_started"
    heard = await client.cancel(guard.url, "att_1", timeout_ms=5_000)
    assert (heard.state, heard.stamp.boot_id) == (StopState.NEVER_STARTED, "boot_a")
    assert guard.cancels == ["att_1"]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, GuardUnheardError),
        (401, TokenRefusedError),
        (403, TokenRefusedError),
        (404, GuardAbsentError),
        (405, GuardAbsentError),
        (503, GuardUnheardError),
    ],
)
async def test_error_status_proves_nothing(
    guard: ScriptedGuard, client: GuardClient, status: int, expected: type[Exception]
) -> None:
    guard.status = status
    with pytest.raises(expected) as raised:
        await client.cancel(guard.url, "att_1", timeout_ms=5_000)
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"\xff",
        b'{"state": "stopped", "now_ms": 1}',
        b'{"state": "stopped", "boot_id": "b", "now_ms": "1"}',
        b'{"state": "stopped", "boot_id": "b", "now_ms": true}',
        b'{"state": "running", "boot_id": "b", "now_ms": 1}',
        b'{"boot_id": "b", "now_ms": 1}',
    ],
)
async def test_answer_that_is_none_proves_nothing(guard: ScriptedGuard, client: GuardClient, body: bytes) -> None:
    guard.body = body
    with pytest.raises(GuardUnheardError):
        await client.cancel(guard.url, "att_1", timeout_ms=5_000)


async def test_silence_ends_with_the_timeout(guard: ScriptedGuard, client: GuardClient) -> None:
    guard.is_answering.clear()
    with pytest.raises(GuardUnheardError, match="Timeout"):
        await client.beat(guard.url, EMPTY, timeout_ms=20)


async def test_refused_connection_is_told_apart(guard: ScriptedGuard, client: GuardClient) -> None:
    await guard.stop()
    with pytest.raises(NotListeningError):
        await client.beat(guard.url, EMPTY, timeout_ms=5_000)

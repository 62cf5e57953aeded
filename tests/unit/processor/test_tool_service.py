"""Calls to tools through the ledger, with every message under control (R11, R12, R17.5)."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from extproc.contract import headers as names
from extproc.decision.tool_call import CallState, ToolRoute
from extproc.processor.messages import RequestHeaders
from extproc.processor.protobuf import HttpBody, ProcessingRequest
from extproc.processor.tool_service import ToolService, ToolWorld
from extproc.storage.opening import open_database
from extproc.storage.owner import Owner
from extproc.tools.interface import Begun, LedgerUnavailable, ToolAnswer, ToolCall
from extproc.tools.ledger import DurableLedger
from tests.unit.processor.stage import AbortedError, FakeAttempt, FakeAttempts, FakeStream

REQUEST = "req_01J00000000000000000000000"
KEYED = ((names.REQUEST_ID, REQUEST), (names.TOOL_CALL, "call_07"))
JSON = (("content-type", "application/json"),)
SSE = (("content-type", "text/event-stream"),)
ROUTE = ToolRoute(name="mail", wait_ms=0, deadline_ms=60_000, answer_bytes_max=1_000)


class MoodyLedger(DurableLedger):
    """A ledger whose database can be away."""

    away = False

    def _check(self) -> None:
        if self.away:
            raise LedgerUnavailable("disk full")

    async def begin(self, call: ToolCall) -> Begun:
        self._check()
        return await super().begin(call)

    async def carried_out(self, call: ToolCall, answer: ToolAnswer | None, why: str) -> None:
        self._check()
        await super().carried_out(call, answer, why)


@dataclass
class ToolStage:
    """A tool service over a real ledger; tools do what the test says."""

    ledger: MoodyLedger
    route: ToolRoute = ROUTE
    attempts: FakeAttempts = field(default_factory=FakeAttempts)

    def __post_init__(self) -> None:
        self.service = ToolService(ToolWorld(attempts=self.attempts, ledger=self.ledger, key_secret=b"secret"))  # type: ignore[arg-type]

    def call(
        self,
        body: bytes = b'{"to": "a"}',
        headers: tuple[tuple[str, str], ...] = KEYED,
        method: str = "POST",
        path: str = "/send",
        **route: Any,
    ) -> tuple[FakeStream, "asyncio.Task[None]"]:
        """Call the tool; the stream that the answer goes to, and the task that serves it."""
        head = RequestHeaders(method=method, path=path, authority="mail.local", headers=headers, end_of_stream=not body)
        stream = FakeStream([ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=True))])
        return stream, asyncio.create_task(self.service.serve(stream, head, replace(self.route, **route)))

    async def sent(self) -> FakeAttempt:
        """The next request that reaches the tool."""
        return await self.attempts.opened.get()

    async def state(self) -> list[tuple[CallState, str | None]]:
        return [(call.state, call.why) for call in await self.ledger.calls(None, 10)]


def answer(attempt: FakeAttempt, body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = JSON) -> None:
    """A whole answer of the tool."""
    attempt.head(status, headers)
    if body:
        attempt.send(body)
    attempt.end()


def error(stream: FakeStream) -> dict[str, Any]:
    document = json.loads(stream.body)["error"]
    assert isinstance(document, dict)
    return document


@pytest.fixture
async def stage(database_url: str) -> AsyncIterator[ToolStage]:
    database = await open_database(database_url)
    owner = Owner(database, "proc_a", 60_000)
    await owner.announce()
    stage = ToolStage(MoodyLedger(database, owner))
    yield stage
    await stage.service.stop(0)
    await database.close()


async def test_a_first_call_runs_and_its_answer_is_handed_on(stage: ToolStage):
    stream, task = stage.call()
    tool = await stage.sent()
    assert tool.request.startswith(b"POST /send HTTP/1.1\r\nhost: mail.local\r\n")
    assert (tool.header(names.REQUEST_ID), tool.header(names.TOOL_CALL), tool.header(names.TOOL)) == (REQUEST, "call_07", "mail")
    assert tool.body == b'{"to": "a"}'
    answer(tool, b'{"sent": 1}', 201, (*JSON, ("set-cookie", "a=1"), ("set-cookie", "b=2")))
    await task
    assert (stream.status, stream.body, stream.ended) == (201, b'{"sent": 1}', True)
    assert stream.header(names.REPLAYED) is None
    assert await stage.state() == [(CallState.CARRIED_OUT, "the tool answered 201")]


async def test_a_repeat_gets_the_first_answer_and_the_tool_hears_nothing(stage: ToolStage):
    _, first = stage.call()
    answer(await stage.sent(), b'{"sent": 1}', 201, (*JSON, ("x-tool", "kept"), ("set-cookie", "a=1")))
    await first
    stream, task = stage.call()
    await task
    assert (stream.status, stream.body) == (201, b'{"sent": 1}')
    assert (stream.header(names.REPLAYED), stream.header("x-tool"), stream.header("set-cookie")) == ("true", "kept", None)
    assert stage.attempts.count == 1


async def test_the_answer_is_stored_before_the_caller_gets_it(stage: ToolStage):
    stream, task = stage.call()
    states: list[list[tuple[CallState, str | None]]] = []

    async def look() -> None:
        states.append(await stage.state())

    stream.before_write = look
    answer(await stage.sent(), b'{"sent": 1}')
    await task
    assert {state for found in states for state, _ in found} == {CallState.CARRIED_OUT}


async def test_a_repeat_waits_for_the_first_call(stage: ToolStage):
    _, first = stage.call()
    tool = await stage.sent()
    stream, second = stage.call(wait_ms=30_000)
    await asyncio.sleep(0)
    answer(tool, b'{"sent": 1}')
    await asyncio.gather(first, second)
    assert (stream.status, stream.header(names.REPLAYED)) == (200, "true")
    assert stage.attempts.count == 1


async def test_a_repeat_that_has_waited_long_enough_is_told_so(stage: ToolStage):
    _, first = stage.call()
    tool = await stage.sent()
    stream, second = stage.call(wait_ms=0)
    await second
    assert stream.status == 409
    assert error(stream) == {
        "message": "The first call with this key is still running.",
        "type": "invalid_request_error",
        "code": "request_in_progress",
        "call": f"mail/{REQUEST}:call_07",
        "request_id": REQUEST,
        "retryable": True,
    }
    answer(tool, b"{}")
    await first


async def test_another_body_under_a_used_key_is_refused(stage: ToolStage):
    _, first = stage.call()
    answer(await stage.sent(), b"{}")
    await first
    for other in ({"body": b'{"to": "b"}'}, {"path": "/delete"}, {"method": "DELETE"}):
        stream, task = stage.call(**other)  # type: ignore[arg-type]
        await task
        assert (stream.status, error(stream)["code"]) == (422, "idempotency_key_reused")
    assert stage.attempts.count == 1


async def test_a_caller_that_dies_leaves_the_call_running_and_its_answer_for_the_next_attempt(stage: ToolStage):
    """R17.5: the replica is killed while its tool works; the second attempt's call finds what the first has done."""
    _, first = stage.call()
    tool = await stage.sent()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not tool.closed
    stream, second = stage.call(wait_ms=30_000)
    answer(tool, b'{"sent": 1}')
    await second
    assert (stream.status, stream.body, stream.header(names.REPLAYED)) == (200, b'{"sent": 1}', "true")
    assert stage.attempts.count == 1


async def test_a_caller_that_fails_while_it_is_answered_does_not_harm_the_record(stage: ToolStage):
    stream, task = stage.call()

    async def gone() -> None:
        raise ConnectionResetError

    stream.before_write = gone
    answer(await stage.sent(), b'{"sent": 1}')
    await task
    assert await stage.state() == [(CallState.CARRIED_OUT, "the tool answered 200")]


async def test_a_tool_that_breaks_off_leaves_an_unknown_outcome_that_is_never_run_again(stage: ToolStage):
    stream, first = stage.call()
    tool = await stage.sent()
    tool.head(200, JSON)
    tool.send(b'{"se')
    tool.end("connection closed by the peer in the response body")
    await first
    assert (stream.status, error(stream)["code"], error(stream)["retryable"]) == (502, "outcome_unknown", False)
    for _ in range(2):
        stream, again = stage.call(wait_ms=30_000)
        await again
        assert (stream.status, error(stream)["code"]) == (409, "outcome_unknown")
        assert "connection closed by the peer" in error(stream)["message"]
    assert stage.attempts.count == 1


async def test_a_tool_that_is_not_reached_frees_the_key(stage: ToolStage):
    stream, first = stage.call()
    answer(await stage.sent(), b"", 503, ((names.EGRESS_FLAGS, "UF"), (names.EGRESS_DETAILS, "refused")))
    await first
    assert (stream.status, error(stream)["code"], stream.header("retry-after")) == (503, "tool_unreachable", "1")
    assert await stage.state() == []
    stage.attempts.refuse = ConnectionRefusedError("no egress")
    stream, second = stage.call()
    await second
    assert stream.status == 503
    stage.attempts.refuse = None
    stream, third = stage.call()
    answer(await stage.sent(), b"{}")
    await third
    assert stream.status == 200


@pytest.mark.parametrize("flags", ["UC", "UR", "UF,UC", "SI"])
async def test_a_connection_that_broke_at_the_tool_is_unknown(stage: ToolStage, flags: str):
    stream, task = stage.call()
    answer(await stage.sent(), b"", 503, ((names.EGRESS_FLAGS, flags),))
    await task
    assert (stream.status, error(stream)["code"]) == (502, "outcome_unknown")
    assert await stage.state() == [(CallState.UNKNOWN, f"Envoy answered 503 with flags {flags}")]


@pytest.mark.parametrize("status", [401, 403, 429])
async def test_a_refusal_of_the_tools_own_is_handed_on_and_frees_the_key(stage: ToolStage, status: int):
    stream, task = stage.call()
    answer(await stage.sent(), b"{}", status)
    await task
    assert (stream.status, await stage.state()) == (status, [])


@pytest.mark.parametrize("status", [400, 404, 409, 500])
async def test_an_error_of_the_tools_own_is_its_answer(stage: ToolStage, status: int):
    _, task = stage.call()
    answer(await stage.sent(), b'{"why": 1}', status)
    await task
    stream, again = stage.call()
    await again
    assert (stream.status, stream.body, stream.header(names.REPLAYED)) == (status, b'{"why": 1}', "true")


async def test_a_tool_that_says_503_is_handed_on_and_unknown(stage: ToolStage):
    stream, task = stage.call()
    answer(await stage.sent(), b"{}", 503)
    await task
    assert stream.status == 503
    assert await stage.state() == [(CallState.UNKNOWN, "the tool answered 503")]


async def test_a_tool_may_say_itself_what_its_answer_proves(stage: ToolStage):
    stream, task = stage.call()
    answer(await stage.sent(), b"{}", 503, (*JSON, (names.OUTCOME, "not_carried_out")))
    await task
    assert (stream.header(names.OUTCOME), await stage.state()) == (None, [])


async def test_a_tool_that_takes_too_long_is_unknown(stage: ToolStage):
    stream, task = stage.call(deadline_ms=0)
    tool = await stage.sent()
    await task
    assert tool.closed
    assert (stream.status, error(stream)["code"]) == (502, "outcome_unknown")
    assert await stage.state() == [(CallState.UNKNOWN, "no whole answer within 0 ms")]


async def test_an_answer_too_long_to_be_kept_is_handed_on_and_never_run_again(stage: ToolStage):
    stream, task = stage.call()
    tool = await stage.sent()
    tool.head(200, JSON)
    for _ in range(3):
        tool.send(b"x" * 600)
    tool.end()
    await task
    assert (stream.status, len(stream.body), stream.ended) == (200, 1_800, True)
    stream, again = stage.call()
    await again
    assert (stream.status, error(stream)["code"]) == (409, "request_completed")
    assert "too long to be kept" in error(stream)["message"]


async def test_an_event_stream_is_handed_on_as_it_comes_and_its_end_held_until_it_is_stored(stage: ToolStage):
    stream, task = stage.call()
    tool = await stage.sent()
    tool.head(200, SSE)
    tool.send(b"data: 1\n\n")
    await stream.changed.wait()
    while b"data: 1" not in stream.body:
        stream.changed.clear()
        await stream.changed.wait()
    assert await stage.state() == [(CallState.RUNNING, None)]
    tool.send(b"data: 2\n\n")
    tool.end()
    await task
    assert (stream.body, stream.ended) == (b"data: 1\n\ndata: 2\n\n", True)
    stream, again = stage.call()
    await again
    assert (stream.body, stream.header("content-type")) == (b"data: 1\n\ndata: 2\n\n", "text/event-stream")


async def test_an_event_stream_that_breaks_is_cut_and_unknown(stage: ToolStage):
    _, task = stage.call()
    tool = await stage.sent()
    tool.head(200, SSE)
    tool.send(b"data: 1\n\n")
    tool.end("connection lost")
    with pytest.raises(AbortedError, match="connection lost"):
        await task
    assert await stage.state() == [(CallState.UNKNOWN, "connection lost")]


# --- the tool's own word ---------------------------------------------------------------------------------------------------


async def lost_call(stage: ToolStage) -> None:
    _, task = stage.call()
    tool = await stage.sent()
    tool.end("connection closed")
    await task


async def test_the_tools_status_answer_settles_that_it_was_carried_out(stage: ToolStage):
    await lost_call(stage)
    stream, task = stage.call(status_path="/status?key={key}")
    question = await stage.sent()
    assert question.request.startswith(f"GET /status?key={REQUEST}%3Acall_07 HTTP/1.1\r\n".encode())
    answer(question, b'{"sent": 1}')
    await task
    assert (stream.status, stream.body, stream.header(names.REPLAYED)) == (200, b'{"sent": 1}', "true")


async def test_the_tools_status_answer_settles_that_it_was_not_and_the_call_runs(stage: ToolStage):
    await lost_call(stage)
    stream, task = stage.call(status_path="/status/{key}")
    answer(await stage.sent(), b"{}", 404)
    tool = await stage.sent()
    assert tool.request.startswith(b"POST /send")
    answer(tool, b'{"sent": 1}')
    await task
    assert (stream.status, stream.header(names.REPLAYED)) == (200, None)


@pytest.mark.parametrize("headers", [JSON, (*JSON, (names.EGRESS_FLAGS, "UF"))])
async def test_a_status_question_without_an_answer_settles_nothing(stage: ToolStage, headers: tuple[tuple[str, str], ...]):
    await lost_call(stage)
    stream, task = stage.call(status_path="/status/{key}")
    answer(await stage.sent(), b"{}", 500 if headers is JSON else 404, headers)
    await task
    assert (stream.status, error(stream)["code"]) == (409, "outcome_unknown")


# --- keys ------------------------------------------------------------------------------------------------------------------


async def test_callers_own_keys_are_their_own(stage: ToolStage):
    for caller in ("Bearer a", "Bearer b"):
        stream, task = stage.call(headers=((names.IDEMPOTENCY_KEY, '"1"'), ("authorization", caller)))
        answer(await stage.sent(), caller.encode())
        await task
        assert stream.body == caller.encode()
    stream, task = stage.call(headers=((names.IDEMPOTENCY_KEY, "1"), ("authorization", "Bearer a")))
    await task
    assert stream.body == b"Bearer a"


async def test_a_key_that_names_its_request_is_the_same_for_every_replica(stage: ToolStage):
    _, task = stage.call(headers=(*KEYED, ("authorization", "Bearer replica-1")))
    answer(await stage.sent(), b"{}")
    await task
    stream, task = stage.call(headers=(*KEYED, ("authorization", "Bearer replica-2")))
    await task
    assert stream.header(names.REPLAYED) == "true"


async def test_a_callers_own_key_is_never_shown(stage: ToolStage):
    stream, task = stage.call(headers=((names.IDEMPOTENCY_KEY, "my-secret-key"),))
    (await stage.sent()).end("lost")
    await task
    (call,) = await stage.ledger.calls(None, 10)
    assert "my-secret-key" not in call.call_key + stream.body.decode()
    assert call.call_key.startswith("mail/key_")


@pytest.mark.parametrize(
    ("headers", "route", "code"),
    [
        (((names.IDEMPOTENCY_KEY, ""),), {}, "invalid_idempotency_key"),
        (((names.REQUEST_ID, REQUEST),), {}, "idempotency_key_required"),
        ((), {"require_key": True}, "idempotency_key_required"),
    ],
)
async def test_a_call_that_can_not_be_named_is_refused(stage: ToolStage, headers: Any, route: dict[str, Any], code: str):
    stream, task = stage.call(headers=headers, **route)
    await task
    assert (stream.status, error(stream)["code"], stage.attempts.count) == (400, code, 0)


async def test_calls_are_counted_for_the_gate_before_they_reach_the_tool(stage: ToolStage):
    _, task = stage.call()
    tool = await stage.sent()
    assert await stage.ledger.calls_of(REQUEST) == 1
    answer(tool, b"{}")
    await task


# --- what wants no protection ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "headers"), [("GET", KEYED), ("POST", ()), ("DELETE", ())])
async def test_reading_and_calls_without_a_key_are_handed_on(stage: ToolStage, method: str, headers: Any):
    for _ in range(2):
        stream, task = stage.call(method=method, headers=headers)
        answer(await stage.sent(), b"{}")
        await task
        assert stream.status == 200
    assert await stage.state() == []


async def test_a_head_request_ends_with_its_head(stage: ToolStage):
    stream, task = stage.call(body=b"", method="HEAD", headers=())
    (await stage.sent()).head(200, JSON)
    await task
    assert (stream.status, stream.ended) == (200, True)


async def test_an_unprotected_exchange_ends_with_its_caller(stage: ToolStage):
    _, task = stage.call(method="GET", headers=())
    tool = await stage.sent()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stage.service.stop(1)
    assert tool.closed


# --- MCP -------------------------------------------------------------------------------------------------------------------


def mcp(message_id: object, method: str = "tools/call", to: str = "a") -> bytes:
    document = {"jsonrpc": "2.0", "id": message_id, "method": method, "params": {"name": "send", "arguments": {"to": to}}}
    return json.dumps(document).encode()


async def test_an_mcp_call_of_a_second_attempt_gets_the_first_ones_result_under_its_own_id(stage: ToolStage):
    _, task = stage.call(mcp(7))
    answer(await stage.sent(), b'{"jsonrpc": "2.0", "id": 7, "result": {"sent": 1}}', headers=(*JSON, ("mcp-session-id", "s1")))
    await task
    stream, task = stage.call(mcp("again-1"))
    await task
    assert json.loads(stream.body) == {"jsonrpc": "2.0", "id": "again-1", "result": {"sent": 1}}
    assert stream.header("mcp-session-id") is None
    assert stage.attempts.count == 1


async def test_an_mcp_event_stream_is_replayed_as_its_response(stage: ToolStage):
    stream, task = stage.call(mcp(7))
    progress = b'data: {"jsonrpc":"2.0","method":"notifications/progress"}\n\n'
    result = b'data: {"jsonrpc":"2.0","id":7,"result":{"sent":1}}\n\n'
    answer(await stage.sent(), progress + result, headers=SSE)
    await task
    assert stream.body == progress + result
    stream, task = stage.call(mcp(8))
    await task
    assert stream.header("content-type") == "application/json"
    assert json.loads(stream.body) == {"jsonrpc": "2.0", "id": 8, "result": {"sent": 1}}


async def test_an_mcp_event_stream_without_the_response_is_unknown(stage: ToolStage):
    _, task = stage.call(mcp(7))
    answer(await stage.sent(), b'data: {"jsonrpc":"2.0","method":"notifications/progress"}\n\n', headers=SSE)
    await task
    assert await stage.state() == [(CallState.UNKNOWN, "the event stream ended without the call's response")]


async def test_other_mcp_messages_pass_even_with_a_key(stage: ToolStage):
    for _ in range(2):
        stream, task = stage.call(mcp(1, "tools/list"), headers=(*KEYED, (names.IDEMPOTENCY_KEY, "session-wide")))
        answer(await stage.sent(), b"{}")
        await task
        assert stream.status == 200
    assert await stage.state() == []


# --- the ledger away, the process stopped -----------------------------------------------------------------------------------


async def test_a_call_that_can_not_be_recorded_is_not_sent(stage: ToolStage):
    stage.ledger.away = True
    stream, task = stage.call()
    await task
    assert (stream.status, error(stream)["code"], stage.attempts.count) == (503, "journal_unavailable", 0)


async def test_an_answer_that_can_not_be_stored_is_delivered_and_stored_when_it_can(stage: ToolStage, monkeypatch):
    monkeypatch.setattr("extproc.processor.tool_run.RECORD_RETRY_S", 0.0)
    monkeypatch.setattr("extproc.processor.tool_run.RECORD_TRIES_MAX", 1_000_000)
    stream, task = stage.call()
    tool = await stage.sent()
    stage.ledger.away = True
    answer(tool, b'{"sent": 1}')
    await task
    assert (stream.status, stream.body) == (200, b'{"sent": 1}')
    assert await stage.state() == [(CallState.RUNNING, None)]
    stage.ledger.away = False
    await stage.service.stop(10)
    assert await stage.state() == [(CallState.CARRIED_OUT, "the tool answered 200")]


async def test_a_call_that_runs_when_the_process_stops_is_unknown_and_its_caller_is_told(stage: ToolStage):
    stream, task = stage.call()
    await stage.sent()
    await stage.service.stop(0)
    await task
    assert (stream.status, error(stream)["code"], stream.ended) == (502, "outcome_unknown", True)
    ((state, why),) = await stage.state()
    assert state is CallState.UNKNOWN
    assert why is not None
    assert "gave up" in why


async def test_an_event_stream_that_runs_when_the_process_stops_is_cut(stage: ToolStage):
    stream, task = stage.call()
    tool = await stage.sent()
    tool.head(200, SSE)
    tool.send(b"data: 1\n\n")
    while not stream.body:
        stream.changed.clear()
        await stream.changed.wait()
    await stage.service.stop(0)
    with pytest.raises(AbortedError, match="stopped"):
        await task

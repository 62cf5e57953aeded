"""One request from admission to its end, with every message under control (R2, R3, R5, R9, R10; CASES areas 1-4)."""

import asyncio
import gzip
import json
from dataclasses import replace

import pytest

from extproc.contract.errors import FORMS, ErrorCode
from extproc.decision import events
from extproc.decision.causes import Fencing
from extproc.decision.policy import DeadlinesPolicy, KeepAlivePolicy, Policy, RetryBudgetPolicy, ToolsMode
from extproc.decision.request import Phase
from extproc.processor.timers import Due, Timers
from extproc.sse.terminal import KEEP_ALIVE_COMMENT
from tests.unit.processor.stage import (
    DONE,
    ERROR,
    FINISH,
    ROLE,
    AbortedError,
    BrokenJournal,
    FakeStream,
    SlowFence,
    Stage,
    text,
    until,
)

JSON = (("content-type", "application/json"),)


@pytest.fixture(autouse=True, params=[True, False], ids=["deltas at once", "deltas by waiting"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the transport may take a delta without waiting, which must make no difference to anything."""
    monkeypatch.setattr(FakeStream, "at_once", request.param)


def terminal(body: bytes) -> dict[str, object]:
    last = body.rstrip(b"\n").rpartition(b"data: ")[2]
    error = json.loads(last)["error"]
    assert isinstance(error, dict)
    return error


async def test_a_whole_stream_is_forwarded_unchanged_and_ended_once() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    for piece in (ROLE, text("Hi"), text(" you"), FINISH, DONE):
        attempt.send(piece)
    await task
    assert stream.body == ROLE + text("Hi") + text(" you") + FINISH + DONE
    assert stream.status == 200
    assert stream.ended
    facts = await stage.facts("req_1")
    assert (facts.outcome, facts.delivered_output_tokens, facts.first_delta_sent) == ("completed", 2, True)
    assert stage.roster.running(attempt.destination) == 0


async def test_nothing_is_written_before_the_first_delta() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(ROLE + b": keep-alive\n\n" + text(""))
    await until(lambda: stage.service.sessions)
    await asyncio.sleep(0)
    assert stream.sent == []
    attempt.send(text("x"))
    await until(lambda: stream.sent)
    assert stream.body == ROLE + b": keep-alive\n\n" + text("") + text("x")
    task.cancel()


@pytest.mark.parametrize("broken", ["connection closed by the peer", None], ids=["cut", "clean end"])
async def test_a_replica_lost_before_the_first_delta_is_replaced_without_a_trace(broken: str | None) -> None:
    stage = Stage()
    stream, task = stage.ask()
    first = await stage.attempts.opened.get()
    first.head()
    first.send(ROLE)
    first.end(broken)
    second = await stage.attempts.opened.get()
    assert second.destination != first.destination
    assert (second.body, second.header("x-deltafence-request-id")) == (first.body, first.header("x-deltafence-request-id"))
    assert second.header("x-deltafence-attempt-id") != first.header("x-deltafence-attempt-id")
    second.head()
    second.send(text("whole") + FINISH + DONE)
    await task
    assert stream.body == text("whole") + FINISH + DONE
    assert stream.header("x-deltafence-attempts") == "2"


@pytest.mark.parametrize(
    ("last_words", "end", "reason"),
    [
        (b"", "connection reset", "replica_gone"),
        (b"", None, "engine_error"),
        (ERROR + DONE, None, "engine_error"),
        (DONE, None, "engine_error"),
        (text("tail")[:-9], "connection reset", "replica_gone"),
    ],
    ids=["cut", "clean end", "in-band error", "done without a finish", "unfinished event"],
)
async def test_a_replica_lost_after_it_ends_the_stream_with_one_terminal_event(
    last_words: bytes, end: str | None, reason: str
) -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(ROLE + text("a") + text("b") + last_words)
    await until(lambda: stream.sent or attempt.closed)
    if not attempt.closed:
        attempt.end(end)
    if last_words and last_words != text("tail")[:-9]:
        # It was all in one read, so nothing of it had been delivered: another attempt, not a partial answer (R17.2).
        second = await stage.attempts.opened.get()
        second.head()
        second.send(text("a") + text("b"))
        await until(lambda: stream.sent)
        second.send(last_words)
    await task
    assert stream.ended
    assert b"tail" not in stream.body
    assert DONE not in stream.body
    error = terminal(stream.body)
    assert error["code"] == "upstream_decode_interrupted"
    assert error["reason"] == reason
    assert (error["partial_output"], error["retryable"], error["delivered_output_tokens"]) == (True, False, 2)
    assert stream.body.count(b'"error"') == 1


async def test_tokens_in_hand_may_be_repeated_when_their_read_also_brought_the_end() -> None:
    stage = Stage()
    stream, task = stage.ask()
    first = await stage.attempts.opened.get()
    first.head()
    first.send(ROLE + text("never seen") + ERROR + DONE)
    second = await stage.attempts.opened.get()
    second.head()
    second.send(text("whole") + FINISH + DONE)
    await task
    assert b"never seen" not in stream.body


async def test_the_journal_holds_the_boundary_before_the_bytes_go_out() -> None:
    stage = Stage()
    stream, task = stage.ask()
    seen: list[bool] = []

    async def look() -> None:
        seen.append((await stage.facts("req_1")).first_delta_sent)

    stream.before_write = look
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("x") + FINISH + DONE)
    await task
    assert seen
    assert all(seen)


async def test_a_boundary_that_cannot_be_recorded_is_not_crossed() -> None:
    stage = Stage(journal=BrokenJournal())
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("x"))
    await task
    assert stream.status == 503
    assert json.loads(stream.body)["error"]["code"] == "journal_unavailable"
    assert attempt.closed


async def test_exhausted_attempts_are_an_honest_status_that_no_sdk_repeats() -> None:
    stage = Stage()
    stream, task = stage.ask()
    for _ in range(2):
        (await stage.attempts.opened.get()).end("connection reset")
    await task
    error = json.loads(stream.body)["error"]
    assert (stream.status, error["code"], error["attempts"], error["partial_output"]) == (502, "attempts_exhausted", 2, False)
    assert stream.header("x-should-retry") == "false"


@pytest.mark.parametrize(
    ("said", "handed_on"),
    [("17", "17"), ("99999", "3600"), ("9" * 5_000, None), ("-1", None), ("Mon, 30 Nov 2026 09:00:00 GMT", None)],
)
async def test_a_replicas_refusal_is_handed_on_when_nobody_has_room(said: str, handed_on: str | None) -> None:
    stage = Stage(policy=Policy(max_attempts=5))
    stream, task = stage.ask()
    for _ in range(3):
        (await stage.attempts.opened.get()).head(429, (("retry-after", said),))
    await task
    default = str(FORMS[ErrorCode.OVERLOADED].retry_after_s)
    assert (stream.status, stream.header("retry-after")) == (429, handed_on or default)
    assert json.loads(stream.body)["error"]["code"] == "overloaded"


async def test_a_request_error_passes_unchanged() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head(400, JSON)
    attempt.send(b'{"error": {"message": "max_tokens is too large"}}')
    attempt.end()
    await task
    assert (stream.status, stream.body) == (400, b'{"error": {"message": "max_tokens is too large"}}')
    assert stage.attempts.count == 1


async def test_an_unreachable_egress_is_an_attempt_that_never_started() -> None:
    stage = Stage()
    stage.attempts.refuse = ConnectionRefusedError("no such socket")
    stream, task = stage.ask()
    await task
    assert stream.status == 502
    facts = await stage.facts("req_1")
    assert [attempt.fence_proof for attempt in facts.attempts] == ["not_started", "not_started"]


async def test_an_attempt_that_went_to_another_replica_is_not_trusted() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head(200, (("content-type", "text/event-stream"), ("x-served-by", "10.9.9.9:1")))
    await task
    assert stream.status == 503
    assert json.loads(stream.body)["error"]["code"] == "source_attempt_not_fenced"


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_client_that_leaves_cancels_its_attempt_and_starts_nothing(phase: str) -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    if phase == "decode":
        attempt.send(text("x"))
        await until(lambda: stream.sent)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert attempt.closed
    assert stage.attempts.count == 1
    facts = await stage.facts("req_1")
    assert (facts.outcome, facts.reason, facts.first_delta_sent) == ("cancelled", "client_gone", phase == "decode")


async def test_a_client_that_leaves_in_a_fence_wait_starts_nothing() -> None:
    fence = SlowFence()
    stage = Stage(fence=fence)
    _, task = stage.ask()
    (await stage.attempts.opened.get()).end("connection reset")
    assert await fence.asked.get() is Fencing.CONFIRM
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.attempts.count == 1


async def test_a_fence_that_did_not_come_to_begin_still_has_its_replica_asked_to_stop() -> None:
    """A loop that stood still finds the attempt's loss and the request's deadline at once."""
    fence = SlowFence()
    stage = Stage(fence=fence)
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    (session,) = stage.service.sessions
    attempt_id = session.attempt.attempt_id
    attempt.end("connection reset")
    session._inbox.put(events.DeadlinePassed(deadline=events.Deadline.FIRST_DELTA))
    await task
    assert stream.status == 504
    assert fence.asked.empty()
    assert fence.cancelled == [attempt_id]


async def test_a_replicas_refusal_is_not_handed_on_where_another_gate_refuses() -> None:
    """A budget that is used up is no word of the replica's, and has its own status (docs/errors.md)."""
    nothing_left = RetryBudgetPolicy(percent=0, min_per_second=0, burst=0)
    stage = Stage(policy=Policy(max_attempts=5, retry_budget=nothing_left))
    stream, task = stage.ask()
    (await stage.attempts.opened.get()).head(429, (("retry-after", "17"),))
    await task
    form = FORMS[ErrorCode.RETRY_BUDGET_EXHAUSTED]
    assert (stream.status, stream.header("retry-after")) == (form.status, str(form.retry_after_s))


LONG = {"model": "m", "messages": [{"role": "user", "content": "word " * 1_000}]}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_only_a_streams_first_delta_tells_how_fast_prompts_are_read(stream: bool) -> None:
    """A whole answer's first byte waits for its last token; as a prefill it would refuse every repeat (R16)."""
    stage, now = Stage(), [0]
    object.__setattr__(stage.service._world, "now_ms", lambda: now[0])
    answer, task = stage.ask(document={**LONG, "stream": stream})
    attempt = await stage.attempts.opened.get()
    now[0] = 1_000
    if stream:
        attempt.head()
        attempt.send(text("x") + FINISH + DONE)
    else:
        message = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        attempt.head(200, JSON)
        attempt.send(json.dumps({"object": "chat.completion", "choices": [message]}).encode())
    attempt.end()
    await task
    assert answer.status == 200
    cost = stage.service._world.pools.of("m").cost_of(5_000)
    assert (cost.prefill_ms is not None) is stream


async def test_no_attempt_starts_before_the_fence_is_proved() -> None:
    fence = SlowFence()
    stage = Stage(fence=fence)
    stream, task = stage.ask()
    (await stage.attempts.opened.get()).end("connection reset")
    await fence.asked.get()
    for _ in range(20):
        await asyncio.sleep(0)
    assert stage.attempts.count == 1
    fence.proof.set_result("cancel_acknowledged")
    second = await stage.attempts.opened.get()
    second.head()
    second.send(text("x") + FINISH + DONE)
    await task
    assert stream.status == 200


async def test_a_fence_that_was_not_proved_is_never_a_blind_repeat() -> None:
    fence = SlowFence()
    fence.proof.set_result(None)
    stage = Stage(fence=fence)
    stream, task = stage.ask()
    (await stage.attempts.opened.get()).end("connection reset")
    await task
    assert (stream.status, stage.attempts.count) == (503, 1)


@pytest.mark.parametrize(("tools", "attempts"), [(ToolsMode.REFUSE, 1), (ToolsMode.LEDGER, 2)])
async def test_a_request_whose_tool_ran_is_repeated_only_with_the_ledger(tools: ToolsMode, attempts: int) -> None:
    stage = Stage(policy=Policy(tools=tools))
    stage.tool_calls = True
    stream, task = stage.ask()
    (await stage.attempts.opened.get()).end("connection reset")
    if attempts == 2:
        second = await stage.attempts.opened.get()
        second.head()
        second.send(text("x") + FINISH + DONE)
    await task
    assert stage.attempts.count == attempts
    assert stream.status == (200 if attempts == 2 else 502)


async def test_fc_05_an_empty_answer_is_delivered_not_repeated() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(ROLE + FINISH + DONE)
    await task
    assert stream.body == ROLE + FINISH + DONE
    assert stage.attempts.count == 1


async def test_fc_05_a_reset_after_the_finish_is_no_error() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("x") + FINISH)
    attempt.end("connection reset")
    await task
    assert stream.body == text("x") + FINISH
    assert (await stage.facts("req_1")).outcome == "completed"


async def test_sse_11_silence_after_the_finish_ends_a_whole_answer() -> None:
    stage = Stage(policy=Policy(deadlines=DeadlinesPolicy(finish_linger_ms=1)))
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("x") + FINISH)
    await task
    assert stream.body == text("x") + FINISH
    assert stream.ended


async def test_sse_12_nothing_after_done_reaches_the_client() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("x") + FINISH + DONE + ERROR)
    await task
    assert stream.body == text("x") + FINISH + DONE


async def test_sse_13_encoded_bytes_pass_untouched_and_are_cut_not_injected_into() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head(200, (("content-type", "text/event-stream"), ("content-encoding", "gzip")))
    packed = gzip.compress(ROLE + text("Hi"))
    attempt.send(packed[:20])
    await until(lambda: stream.sent)
    attempt.send(packed[20:])
    attempt.end("connection reset")
    with pytest.raises(AbortedError):
        await task
    assert stream.body == packed
    assert not stream.ended


async def test_sse_13_an_encoded_answer_that_ends_is_whole() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head(200, (("content-type", "text/event-stream"), ("content-encoding", "gzip")))
    packed = gzip.compress(text("Hi") + FINISH + DONE)
    attempt.send(packed)
    attempt.end()
    await task
    assert stream.body == packed
    assert stream.ended


@pytest.mark.parametrize("body", [b'{"error": {"message": "x", "code": 503}}', b""], ids=["error object", "empty"])
async def test_sse_14_a_200_that_is_no_answer_is_a_failed_attempt(body: bytes) -> None:
    stage = Stage()
    stream, task = stage.ask()
    first = await stage.attempts.opened.get()
    first.head(200, JSON)
    if body:
        first.send(body)
    first.end()
    second = await stage.attempts.opened.get()
    second.head()
    second.send(text("x") + FINISH + DONE)
    await task
    assert stream.body == text("x") + FINISH + DONE


async def test_sse_14_events_under_a_wrong_content_type_are_read() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head(200, (("content-type", "text/plain"),))
    attempt.send(text("x"))
    await until(lambda: stream.sent)
    attempt.end("connection reset")
    await task
    assert terminal(stream.body)["code"] == "upstream_decode_interrupted"


WHOLE = {"choices": [{"index": 0, "message": {"content": "all"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}


async def test_an_answer_that_is_not_streamed_is_repeatable_until_it_is_complete() -> None:
    stage = Stage()
    stream, task = stage.ask(document={"model": "m", "messages": []})
    first = await stage.attempts.opened.get()
    first.head(200, JSON)
    first.send(json.dumps(WHOLE).encode()[:30])
    first.end("connection reset")
    second = await stage.attempts.opened.get()
    second.head(200, JSON)
    second.send(json.dumps(WHOLE).encode())
    second.end()
    await task
    assert json.loads(stream.body) == WHOLE
    assert stream.header("content-length") == str(len(json.dumps(WHOLE)))
    assert (await stage.facts("req_1")).delivered_output_tokens == 3


async def test_more_than_may_be_held_is_an_error_and_no_repeat() -> None:
    stage = Stage(held_bytes_max=100)
    stream, task = stage.ask(document={"model": "m", "messages": []})
    attempt = await stage.attempts.opened.get()
    attempt.head(200, JSON)
    attempt.send(b"x" * 101)
    await task
    assert (stream.status, stage.attempts.count) == (502, 1)
    assert json.loads(stream.body)["error"]["code"] == "response_too_large"
    assert attempt.closed


async def test_the_first_delta_deadline_is_an_honest_504() -> None:
    stage = Stage(policy=Policy(deadlines=DeadlinesPolicy(first_delta_ms=1)))
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    await task
    assert stream.status == 504
    assert attempt.closed


async def test_the_total_deadline_interrupts_a_started_stream() -> None:
    stage = Stage(policy=Policy(deadlines=DeadlinesPolicy(first_delta_ms=3_000, total_ms=3_000)))
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("x"))
    await task
    assert terminal(stream.body)["reason"] == "total_ms"


async def test_the_idle_deadline_counts_only_silence_after_the_first_delta() -> None:
    stage = Stage(policy=Policy(deadlines=DeadlinesPolicy(idle_ms=1)))
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("x"))
    await task
    assert terminal(stream.body)["reason"] == "idle_ms"


async def test_what_came_while_the_boundary_was_recorded_is_no_silence() -> None:
    """A slow journal holds the session back for longer than the idle time, not the replica."""
    stage, now = Stage(policy=Policy(deadlines=DeadlinesPolicy(idle_ms=60_000))), [0]
    object.__setattr__(stage.service._world, "now_ms", lambda: now[0])
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("x"))
    (session,) = stage.service.sessions
    await until(lambda: session.state.phase is Phase.DECODE and session._inbox.is_idle)
    session._inbox.put(Due.IDLE)
    session.attempt.relay = None
    attempt.send(text("y"))
    now[0] = 100_000
    attempt.send(FINISH + DONE)
    await task
    assert stream.body.endswith(DONE)
    assert b"error" not in stream.body


async def test_a_silent_prefill_is_looked_at_once_in_the_idle_time_and_not_all_the_time(monkeypatch) -> None:
    """vLLM says nothing until its first token, for minutes if the prompt is long; whoever looks takes a core from others (R5)."""
    waits, now = [], [0]
    loop = asyncio.get_running_loop()

    def look(timers: Timers, after_ms: int) -> None:
        waits.append(after_ms)
        now[0] += 100_000
        if len(waits) < 4:
            loop.call_soon(timers._put, Due.IDLE)

    monkeypatch.setattr(Timers, "look_for_silence", look)
    stage = Stage(policy=Policy(deadlines=DeadlinesPolicy(idle_ms=1_000)))
    object.__setattr__(stage.service._world, "now_ms", lambda: now[0])
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    await until(lambda: len(waits) == 4)
    assert waits == [1_000] * 4
    attempt.head()
    for piece in (text("x"), FINISH, DONE):
        attempt.send(piece)
    await task
    assert stream.body.endswith(DONE)


async def test_a_session_keeps_one_timer_of_each_kind() -> None:
    timers = Timers(Policy(), lambda signal: None)
    timers.start(stream=True)
    for _ in range(3):
        timers.look_for_silence(60_000)
        timers.keep_alive_again()
    assert len(timers._handles) == 4
    timers.cancel()
    assert not timers._handles


async def test_can_03_keep_alive_writes_head_and_comments_and_tells_failures_in_band() -> None:
    policy = Policy(max_attempts=1, keep_alive=KeepAlivePolicy(after_ms=1, interval_ms=1))
    stage = Stage(policy=policy)
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    while stream.body.count(KEEP_ALIVE_COMMENT) < 2:
        stream.changed.clear()
        await stream.changed.wait()
    assert stream.status == 200
    attempt.end("connection reset")
    await task
    error = terminal(stream.body)
    assert (error["code"], error["partial_output"]) == ("attempts_exhausted", False)
    assert stream.ended
    facts = await stage.facts("req_1")
    assert (facts.outcome, facts.first_delta_sent) == ("failed", False)


async def test_can_03_a_request_error_after_an_early_head_is_told_in_band() -> None:
    stage = Stage(policy=Policy(keep_alive=KeepAlivePolicy(after_ms=1, interval_ms=60_000)))
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    await stream.changed.wait()
    attempt.head(400, JSON)
    attempt.send(b'{"error": "no such model"}')
    attempt.end()
    await task
    assert "no such model" in str(terminal(stream.body)["message"])


async def test_a_flooding_replica_is_paused_until_the_session_has_read() -> None:
    stage = Stage(held_bytes_max=1 << 30)
    _, task = stage.ask(document={"model": "m", "messages": []})
    attempt = await stage.attempts.opened.get()
    await until(lambda: stage.service.sessions)
    attempt.head(200, JSON)
    attempt.send(b"x" * (2 << 20))
    assert attempt.paused
    await until(lambda: not attempt.paused)
    task.cancel()


async def test_the_drain_limit_ends_a_started_stream_in_words() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("x"))
    await until(lambda: stream.sent)
    stage.service.end_sessions()
    await task
    assert terminal(stream.body)["reason"] == "draining"


async def test_a_draining_processor_takes_no_request_and_says_so() -> None:
    stage = Stage(draining=True)
    stream, task = stage.ask()
    await task
    assert stream.status == 503
    assert stream.header("x-should-retry") == "true"
    assert stage.attempts.count == 0


async def test_id_02_one_streams_failure_never_touches_another() -> None:
    stage = Stage()
    one, task_one = stage.ask()
    first = await stage.attempts.opened.get()
    two, task_two = stage.ask()
    other = await stage.attempts.opened.get()
    other.head()
    other.send(text("b"))
    await until(lambda: two.sent)
    first.end("connection reset")
    repeat = await stage.attempts.opened.get()
    repeat.head()
    repeat.send(text("a") + FINISH + DONE)
    other.send(FINISH + DONE)
    await asyncio.gather(task_one, task_two)
    assert stage.attempts.count == 3
    assert (one.body, two.body) == (text("a") + FINISH + DONE, text("b") + FINISH + DONE)


@pytest.mark.parametrize(
    ("path", "method"),
    [("/v1/embeddings", "POST"), ("/v1/chat/completions", "GET"), ("/v1/messages/count_tokens", "POST"), ("/v1/models", "GET")],
)
async def test_what_is_no_generation_passes_through_byte_for_byte(path: str, method: str) -> None:
    stage = Stage()
    stream, task = stage.ask(path, {"input": "x"}, method)
    await task
    assert stage.attempts.count == 0
    assert stream.sent[0].HasField("request_headers")
    assert stream.sent[1].request_body.response.body_mutation.streamed_response.body == b'{"input": "x"}'


async def test_replicas_of_another_identity_are_never_asked_for_a_repeat() -> None:
    base = Stage()
    a, b = (replace(replica, identity=f"model@{number}") for number, replica in enumerate(base.replicas[:2]))
    stage = Stage(replicas=(a, b))
    stream, task = stage.ask()
    (await stage.attempts.opened.get()).end("connection reset")
    await task
    assert (stream.status, stage.attempts.count) == (503, 1)
    assert json.loads(stream.body)["error"]["code"] == "no_healthy_replica"

"""Each fault does what it says, on a real connection."""

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess

CHAT = {"messages": [{"role": "user", "content": "x"}], "stream": True}
WHOLE = {"messages": [{"role": "user", "content": "x"}]}
ROLE = b'"role":"assistant"'
DONE = b"data: [DONE]\n\n"

Send = Callable[..., Awaitable]

PLACES = [
    # where, options, text that arrived before it, role chunk, finish, [DONE]
    (Where.AFTER_HEADERS, {}, "", False, False, False),
    (Where.IN_PREFILL, {}, "", False, False, False),
    (Where.AFTER_TOKEN_COMPUTED, {}, "", False, False, False),
    (Where.AFTER_TOKEN_COMPUTED, {"deltas": 2}, "r1:0 r1:1 ", True, False, False),
    (Where.AFTER_ROLE, {}, "", True, False, False),
    (Where.AFTER_FIRST_DELTA, {}, "r1:0 ", True, False, False),
    (Where.MID_DECODE, {}, "r1:0 r1:1 r1:2 ", True, False, False),
    (Where.MID_DECODE, {"deltas": 2}, "r1:0 r1:1 ", True, False, False),
    (Where.BEFORE_FINISH, {}, "r1:0 r1:1 r1:2 r1:3 r1:4 ", True, False, False),
    (Where.AFTER_FINISH, {}, "r1:0 r1:1 r1:2 r1:3 r1:4 ", True, True, False),
    (Where.AFTER_DONE, {}, "r1:0 r1:1 r1:2 r1:3 r1:4 ", True, True, True),
]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "T"


@pytest.mark.parametrize("what", [What.CLOSE, What.RESET, What.EOF])
@pytest.mark.parametrize(("where", "options", "text", "role", "finish", "done"), PLACES)
async def test_stream_is_ended_at_its_place(
    replica: ReplicaProcess,
    send: Send,
    eventually: Callable[..., Awaitable],
    what: What,
    where: Where,
    options: dict[str, int],
    text: str,
    role: bool,
    finish: bool,
    done: bool,
) -> None:
    await replica.set_faults(Fault(where=where, what=what, **options))
    exchange = await (await send(replica)).read_to_end()
    assert exchange.end == {What.CLOSE: "cut", What.RESET: "reset", What.EOF: "clean"}[what]
    assert exchange.status == 200
    assert exchange.text == text
    assert (ROLE in exchange.body, b'"finish_reason":"stop"' in exchange.body, DONE in exchange.body) == (role, finish, done)
    (record,) = await replica.log()
    assert (record["ended"], record["fault"]) == ("fault", f"{where}:{what}")
    assert record["bytes_published"] == len(exchange.body)
    await eventually(replica.state, lambda state: state["running"] == state["waiting"] == 0)
    assert replica.stderr() == ""


@pytest.mark.parametrize(("what", "end"), [(What.CLOSE, "cut"), (What.RESET, "reset")])
async def test_connection_ends_before_headers(replica: ReplicaProcess, send: Send, what: What, end: str) -> None:
    await replica.set_faults(Fault(where=Where.BEFORE_HEADERS, what=what))
    exchange = await (await send(replica)).read_to_end()
    assert (exchange.received, exchange.end) == (b"", end)
    assert replica.stderr() == ""


async def test_event_is_cut_in_its_middle(replica: ReplicaProcess, send: Send) -> None:
    await replica.set_faults(Fault(where=Where.INSIDE_EVENT, what=What.CLOSE, deltas=1))
    exchange = await (await send(replica)).read_to_end()
    first, fragment = exchange.body.split(b"\n\n")[1:]
    assert b"r1:0 " in first
    assert fragment.startswith(b'data: {"id"')
    assert len(fragment) == len(first + b"\n\n") // 2


@pytest.mark.parametrize(
    ("path", "body", "mark"),
    [
        ("/v1/chat/completions", CHAT, b'"code":500}}\n\ndata: [DONE]\n\n'),
        ("/v1/completions", {"prompt": "x", "stream": True}, b'"code":500}}\n\ndata: [DONE]\n\n'),
        ("/v1/responses", {"input": "x", "stream": True}, b'event: error\ndata: {"type":"error","sequence_number":'),
        ("/v1/messages", CHAT, b'event: error\ndata: {"type":"error","error":{"type":"internal_error"'),
    ],
)
@pytest.mark.parametrize("where", [Where.BEFORE_HEADERS, Where.AFTER_ROLE, Where.MID_DECODE])
async def test_error_event_is_in_band_under_a_200(
    replica: ReplicaProcess, send: Send, where: Where, path: str, body: dict, mark: bytes
) -> None:
    await replica.set_faults(Fault(where=where, what=What.ERROR_EVENT))
    exchange = await (await send(replica, body, path)).read_to_end()
    assert (exchange.status, exchange.end) == (200, "clean")
    assert mark in exchange.body
    assert (await replica.log())[0]["ended"] == "failed"


@pytest.mark.parametrize(
    ("path", "body", "mark", "end"),
    [
        ("/v1/chat/completions", CHAT, b'"finish_reason":"abort"', DONE),
        ("/v1/completions", {"prompt": "x", "stream": True}, b'"finish_reason":"abort"', DONE),
        ("/v1/responses", {"input": "x", "stream": True}, b'"status":"cancelled"', b"}\n\n"),
        ("/v1/messages", CHAT, b'"stop_reason":null},"usage"', b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
    ],
)
async def test_abort_is_a_finish_of_its_own(
    replica: ReplicaProcess, send: Send, path: str, body: dict, mark: bytes, end: bytes
) -> None:
    await replica.set_faults(Fault(where=Where.AFTER_FIRST_DELTA, what=What.ABORT))
    exchange = await (await send(replica, body, path)).read_to_end()
    assert mark in exchange.body
    assert exchange.body.endswith(end)
    assert (await replica.log())[0]["ended"] == "aborted"


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        ("/v1/chat/completions", CHAT, DONE),
        ("/v1/messages", CHAT, b'data: {"type":"message_stop"}\n\n'),
        ("/v1/responses", {"input": "x", "stream": True}, b"}\n\n"),
    ],
)
async def test_done_without_a_finish(replica: ReplicaProcess, send: Send, path: str, body: dict, end: bytes) -> None:
    await replica.set_faults(Fault(where=Where.AFTER_FIRST_DELTA, what=What.DONE))
    exchange = await (await send(replica, body, path)).read_to_end()
    assert exchange.end == "clean"
    assert exchange.body.endswith(end)
    assert b"stop" not in exchange.body.replace(b"message_stop", b"").replace(b"stop_", b"")
    assert b"response.completed" not in exchange.body


@pytest.mark.parametrize("where", [Where.BEFORE_HEADERS, Where.AFTER_FIRST_DELTA])
async def test_garbage_is_no_json(replica: ReplicaProcess, send: Send, where: Where) -> None:
    await replica.set_faults(Fault(where=where, what=What.GARBAGE))
    exchange = await (await send(replica)).read_to_end()
    assert exchange.end == "clean"
    assert b"\xff\xfe" in exchange.body


@pytest.mark.parametrize(("where", "start"), [(Where.BEFORE_HEADERS, b"\x00<"), (Where.AFTER_ROLE, b"HTTP/1.1 200")])
async def test_malformed_bytes_are_not_http(replica: ReplicaProcess, send: Send, where: Where, start: bytes) -> None:
    await replica.set_faults(Fault(where=where, what=What.MALFORMED))
    exchange = await (await send(replica)).read_to_end()
    assert exchange.end == "cut"
    assert exchange.received.startswith(start)
    assert exchange.received.endswith(b"<this is not HTTP>\r\n\r\n")


@pytest.mark.parametrize(
    ("status", "retry_after_s", "path"),
    [
        (500, None, "/v1/chat/completions"),
        (503, 7, "/v1/chat/completions"),
        (429, 1, "/v1/messages"),
        (400, None, "/v1/messages"),
    ],
)
async def test_http_error(replica: ReplicaProcess, send: Send, status: int, retry_after_s: int | None, path: str) -> None:
    await replica.set_faults(
        Fault(where=Where.BEFORE_HEADERS, what=What.HTTP_ERROR, status=status, retry_after_s=retry_after_s, message="no", times=1)
    )
    exchange = await (await send(replica, CHAT, path)).read_to_end()
    assert exchange.status == status
    assert b'"message":"no"' in exchange.body
    assert (b"retry-after" in exchange.head) is (retry_after_s is not None)
    assert (await (await send(replica, CHAT, path)).read_to_end()).status == 200


async def test_stalled_request_keeps_slot_and_connection_until_the_client_leaves(
    replica: ReplicaProcess, send: Send, eventually: Callable[..., Awaitable]
) -> None:
    await replica.set_faults(Fault(where=Where.AFTER_FIRST_DELTA, what=What.STALL, body_contains="stall here"))
    stalled = await send(replica, CHAT | {"user": "stall here"})
    await stalled.read_until(b"r1:0 ")
    assert (await (await send(replica)).read_to_end()).end == "clean"
    state = await replica.state()
    assert (state["running"], b"r1:1 " in stalled.received) == (1, False)
    stalled.leave()
    await eventually(replica.state, lambda state: state["running"] == 0)
    record = (await replica.log())[0]
    assert (record["ended"], record["fault"]) == ("client_gone", "after_first_delta:stall")
    assert record["slot_freed_at"] >= record["chunks"][-1]["at"]


async def test_slow_takes_its_factor(replica: ReplicaProcess, send: Send) -> None:
    await replica.set_faults(Fault(where=Where.AFTER_FIRST_DELTA, what=What.SLOW, factor=30))
    exchange = await (await send(replica)).read_to_end()
    assert exchange.text == "r1:0 r1:1 r1:2 r1:3 r1:4 "
    chunks = [chunk for chunk in (await replica.log())[0]["chunks"] if chunk["kind"] == "delta"]
    # Four steps of 1 ms, thirty times as long. A lower bound: a late timer can't break it, an early one is early by 1 ms.
    assert chunks[-1]["at"] - chunks[0]["at"] >= 4 * 0.028


async def test_two_faults_of_one_request_both_strike(replica: ReplicaProcess, send: Send) -> None:
    await replica.set_faults(
        Fault(where=Where.AFTER_FIRST_DELTA, what=What.SLOW, factor=2),
        Fault(where=Where.AFTER_FIRST_DELTA, what=What.CLOSE),
    )
    exchange = await (await send(replica)).read_to_end()
    assert (exchange.text, exchange.end) == ("r1:0 ", "cut")


async def test_hang_at_a_place_stops_the_whole_engine(
    replica: ReplicaProcess, send: Send, eventually: Callable[..., Awaitable]
) -> None:
    await replica.set_faults(Fault(where=Where.AFTER_FIRST_DELTA, what=What.HANG))
    exchange = await send(replica)
    await eventually(replica.state, lambda state: state["hung"] == ["0"])
    await exchange.read_until(b"r1:0 ")
    assert b"r1:1 " not in exchange.received
    await replica.unhang()
    assert (await exchange.read_to_end()).text == "r1:0 r1:1 r1:2 r1:3 r1:4 "


@pytest.mark.parametrize(
    ("what", "status", "code"),
    [(What.KILL, None, -signal.SIGKILL), (What.EXIT, 3, 3), (What.EXIT, None, 0)],
)
@pytest.mark.parametrize("where", [Where.BEFORE_HEADERS, Where.AFTER_FIRST_DELTA])
async def test_process_ends_after_all_it_had_sent(
    own_replica: Callable[..., object], send: Send, where: Where, what: What, status: int | None, code: int
) -> None:
    async with own_replica(faults=(Fault(where=where, what=what, status=status),)) as replica:
        exchange = await (await send(replica)).read_to_end()
        assert exchange.end in ("cut", "reset")
        assert (b"r1:0 " in exchange.received, b"r1:1 " in exchange.received) == (where is Where.AFTER_FIRST_DELTA, False)
        assert await replica.wait() == code


async def test_frozen_process_answers_nothing_until_it_is_let_go(own_replica: Callable[..., object], send: Send) -> None:
    async with own_replica(faults=(Fault(where=Where.AFTER_FIRST_DELTA, what=What.FREEZE),)) as replica:
        exchange = await send(replica)
        await exchange.read_until(b"r1:0 ")
        while not is_stopped(replica.pid):
            pass
        replica.send_signal(signal.SIGCONT)
        assert (await exchange.read_to_end()).end == "clean"


async def test_dead_engine_fails_every_stream_and_then_ends_the_process(own_replica: Callable[..., object], send: Send) -> None:
    fault = Fault(where=Where.MID_DECODE, what=What.ENGINE_DEATH, body_contains="die", delay_ms=60_000)
    async with own_replica(faults=(fault,), token_interval_ms=20) as replica:
        other = await send(replica)
        await other.read_until(ROLE)
        struck = await (await send(replica, CHAT | {"user": "die"})).read_to_end()
        await other.read_to_end()
        for exchange in (struck, other):
            assert b"EngineCore encountered an issue" in exchange.body
            assert exchange.body.endswith(DONE)
        assert (await (await send(replica, b"", "/health", method="GET")).read_to_end()).status == 503
        assert (await (await send(replica)).read_to_end()).status == 500
    async with own_replica(faults=(Fault(where=Where.MID_DECODE, what=What.ENGINE_DEATH, delay_ms=1),)) as replica:
        await (await send(replica)).read_to_end()
        assert await replica.wait() == 0


async def test_held_request_goes_on_when_it_is_released(replica: ReplicaProcess, send: Send) -> None:
    await replica.set_faults(Fault(where=Where.AFTER_FIRST_DELTA, what=What.HOLD))
    exchange = await send(replica)
    await exchange.read_until(b"r1:0 ")
    assert (await replica.state())["running"] == 1
    await replica.release()
    assert (await exchange.read_to_end()).text == "r1:0 r1:1 r1:2 r1:3 r1:4 "
    assert (await replica.log())[0]["fault"] == "after_first_delta:hold"


async def test_held_request_fails_with_its_engine(own_replica: Callable[..., object], send: Send) -> None:
    async with own_replica(faults=(Fault(where=Where.AFTER_FIRST_DELTA, what=What.HOLD),)) as replica:
        exchange = await send(replica)
        await exchange.read_until(b"r1:0 ")
        await replica.die()
        await exchange.read_to_end()
        assert (exchange.text, b"EngineCore encountered an issue" in exchange.body) == ("r1:0 ", True)
        assert await replica.wait() == 0


async def test_replicas_that_share_claims_count_attempts_together(
    own_replica: Callable[..., object], send: Send, tmp_path: Path
) -> None:
    fault = Fault(where=Where.BEFORE_HEADERS, what=What.HTTP_ERROR, nth=2, header="x-mark=1")
    async with (
        own_replica(claims=str(tmp_path), faults=(fault,)) as one,
        own_replica(claims=str(tmp_path), faults=(fault,)) as other,
    ):
        asked = [(one, "1"), (one, "2"), (other, "1"), (one, "1")]
        answers = [await (await send(replica, headers={"x-mark": mark})).read_to_end() for replica, mark in asked]
        assert [answer.status for answer in answers] == [200, 200, 503, 200]


@pytest.mark.parametrize(
    ("where", "what", "end", "published"),
    [
        (Where.BEFORE_HEADERS, What.CLOSE, "cut", False),
        (Where.IN_PREFILL, What.RESET, "reset", False),
        (Where.AFTER_TOKEN_COMPUTED, What.CLOSE, "cut", False),
        (Where.MID_DECODE, What.CLOSE, "cut", False),
        (Where.AFTER_HEADERS, What.CLOSE, "cut", False),
        (Where.MID_BODY, What.RESET, "reset", True),
        (Where.MID_BODY, What.CLOSE, "cut", True),
        (Where.MID_BODY, What.EOF, "clean", True),
        (Where.MID_BODY, What.GARBAGE, "clean", True),
    ],
)
async def test_whole_answer_is_broken_at_its_place(
    replica: ReplicaProcess, send: Send, where: Where, what: What, end: str, published: bool
) -> None:
    await replica.set_faults(Fault(where=where, what=what))
    exchange = await (await send(replica, WHOLE)).read_to_end()
    assert exchange.end == end
    assert (b'{"id":' in exchange.received, b'"finish_reason"' in exchange.received) == (published, False)
    assert (exchange.received != b"") is (where in (Where.AFTER_HEADERS, Where.MID_BODY))
    assert replica.stderr() == ""


async def test_whole_answer_fails_or_aborts(replica: ReplicaProcess, send: Send) -> None:
    await replica.set_faults(Fault(where=Where.MID_DECODE, what=What.ERROR_EVENT))
    failed = await (await send(replica, WHOLE)).read_to_end()
    assert (failed.status, b"InternalServerError" in failed.body) == (500, True)
    await replica.set_faults(Fault(where=Where.MID_DECODE, what=What.ABORT, deltas=2))
    aborted = await (await send(replica, WHOLE)).read_to_end()
    assert (aborted.status, b'"content":"r1:0 r1:1 "' in aborted.body) == (200, True)
    assert b'"finish_reason":"abort"' in aborted.body


async def test_unreadable_fault_is_a_400_and_changes_nothing(replica: ReplicaProcess, send: Send) -> None:
    await replica.set_faults(Fault(where=Where.AFTER_ROLE, what=What.KILL, times=0))
    for body in (b"{", b'{"where":"nowhere","what":"kill"}', b'["x"]', b'{"what":"kill"}'):
        assert (await (await send(replica, body, "/sim/faults")).read_to_end()).status == 400
    listed = await (await send(replica, b"", "/sim/faults", method="GET")).read_to_end()
    assert listed.body == b'[{"where":"after_role","what":"kill","times":0,"left":0}]'

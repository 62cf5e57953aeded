"""A client that leaves, evidence in the log, refusals."""

from collections.abc import Awaitable, Callable

import pytest

from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess

CHAT = {"messages": [{"role": "user", "content": "x"}], "stream": True}
Send = Callable[..., Awaitable]


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_frees_its_slot(
    replica: ReplicaProcess, send: Send, eventually: Callable[..., Awaitable], stream: bool
) -> None:
    """vLLM aborts at once, streamed or not (CAN-04)."""
    await replica.set_faults(Fault(where=Where.IN_PREFILL, what=What.STALL))
    exchange = await send(replica, CHAT | {"stream": stream})
    await eventually(replica.state, lambda state: state["running"] == 1)
    exchange.leave()
    await eventually(replica.state, lambda state: state["running"] == 0)
    (record,) = await replica.log()
    assert (record["ended"], record["stream"]) == ("client_gone", stream)
    assert record["slot_taken_at"] < record["ended_at"] <= record["slot_freed_at"]


async def test_waiting_client_that_leaves_is_forgotten(
    own_replica: Callable[..., object], send: Send, eventually: Callable[..., Awaitable]
) -> None:
    async with own_replica(slots=1, faults=(Fault(where=Where.IN_PREFILL, what=What.STALL, times=1),)) as replica:
        await send(replica)
        await eventually(replica.state, lambda state: state["running"] == 1)
        waiting = await send(replica)
        await eventually(replica.state, lambda state: state["waiting"] == 1)
        # The 200 is out before there is a slot (FACTS A).
        await waiting.read_until(b"HTTP/1.1 200")
        waiting.leave()
        await eventually(replica.state, lambda state: state["waiting"] == 0)
        record = (await replica.log())[1]
        assert (record["ended"], record["slot_taken_at"]) == ("client_gone", None)


async def test_client_that_leaves_while_it_uploads_starts_nothing(
    replica: ReplicaProcess, send: Send, eventually: Callable[..., Awaitable]
) -> None:
    exchange = await send(replica, b'{"messages": ', headers={"content-length": "1000"})
    await eventually(replica.log, bool)
    exchange.leave()
    (record,) = await eventually(replica.log, lambda log: log and log[0]["ended"])
    assert (record["ended"], record["slot_taken_at"], record["chunks"]) == ("client_gone", None, [])


async def test_log_keeps_the_gateway_s_ids_and_no_secret(replica: ReplicaProcess, send: Send) -> None:
    headers = {
        "x-deltafence-request-id": "req_1",
        "x-deltafence-attempt-id": "att_1",
        "x-deltafence-token": "secret",
        "authorization": "Bearer secret",
        "idempotency-key": "k",
    }
    await (await send(replica, CHAT, headers=headers)).read_to_end()
    (record,) = await replica.log()
    assert (record["request_id"], record["attempt_id"]) == ("req_1", "att_1")
    assert set(record["headers"]) == {"x-deltafence-request-id", "x-deltafence-attempt-id", "idempotency-key"}


async def test_log_tells_what_was_published_and_when(replica: ReplicaProcess, send: Send) -> None:
    before = (await replica.state())["now"]
    exchange = await (await send(replica, CHAT | {"max_tokens": 2, "stream_options": {"include_usage": True}})).read_to_end()
    (record,) = await replica.log()
    after = (await replica.state())["now"]
    assert (record["api"], record["status"], record["ended"], record["tokens_computed"]) == ("chat", 200, "finished", 2)
    assert record["bytes_published"] == len(exchange.body)
    assert [(chunk["kind"], chunk["text"]) for chunk in record["chunks"]] == [
        ("role", ""),
        ("delta", "r1:0 "),
        ("finish", "r1:1 "),
        ("usage", ""),
        ("done", ""),
    ]
    times = [record[name] for name in ("received_at", "headers_at", "slot_taken_at", "first_token_at")]
    times += [chunk["at"] for chunk in record["chunks"]] + [record["ended_at"]]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= after
    assert record["chunks"][2]["at"] <= record["slot_freed_at"] <= record["ended_at"]


async def test_request_id_becomes_the_answer_s_id(replica: ReplicaProcess, send: Send) -> None:
    exchange = await (await send(replica, CHAT, headers={"x-request-id": "mine"})).read_to_end()
    assert b'"id":"chatcmpl-mine"' in exchange.body


async def test_bad_body_is_refused_without_a_slot(replica: ReplicaProcess, send: Send) -> None:
    exchange = await (await send(replica, b"{")).read_to_end()
    assert (exchange.status, b'"type":"BadRequestError"' in exchange.body) == (400, True)
    (record,) = await replica.log()
    assert (record["ended"], record["slot_taken_at"]) == ("refused", None)


async def test_connection_is_kept_for_the_next_request(replica: ReplicaProcess, send: Send) -> None:
    exchange = await send(replica, CHAT | {"stream": False})
    await exchange.read_until(b"completion_tokens")
    data = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    exchange.connection.send(data)
    await exchange.read_until(b'{"version":"0.32.0"}')

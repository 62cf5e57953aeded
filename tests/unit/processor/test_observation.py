"""Mode ``observe`` without Envoy: every way in which a copied exchange can go, and what ``enforce`` would have done."""

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from extproc.decision.policy import Mode, Policy, RetryBudgetPolicy
from extproc.journal.interface import History
from extproc.journal.records import EventKind
from extproc.journal.verify import verify
from extproc.processor import watched
from extproc.processor.protobuf import HttpBody, HttpHeaders, ProcessingRequest
from extproc.processor.watched import with_envoys_flags
from extproc.replicas.attempt_client import ResponseHead
from extproc.replicas.listening import refuses_connections
from tests.unit.processor.stage import DONE, ERROR, FINISH, ROLE, A, FakeStream, Stage, text

OBSERVE = Policy(mode=Mode.OBSERVE)
QUESTION = {"model": "m", "stream": True, "messages": []}


def head(status: int = 200, content_type: str = "text/event-stream", **attributes: Any) -> ProcessingRequest:
    message = ProcessingRequest(response_headers=HttpHeaders(), observability_mode=True)
    for name, value in ((":status", str(status)), ("content-type", content_type)):
        message.response_headers.headers.headers.add(key=name, raw_value=value.encode())
    told = {"upstream.address": A.destination, "response.flags": 0, "response.code_details": "via_upstream", **attributes}
    message.attributes["filter"].update({name.replace("__", "."): value for name, value in told.items()})
    return message


def piece(data: bytes = b"", *, last: bool = False) -> ProcessingRequest:
    return ProcessingRequest(response_body=HttpBody(body=data, end_of_stream=last), observability_mode=True)


def asked(document: Any = QUESTION) -> list[ProcessingRequest]:
    headers = HttpHeaders()
    for name, value in ((":method", "POST"), (":path", "/v1/chat/completions"), ("x-request-id", "client-1")):
        headers.headers.headers.add(key=name, raw_value=value.encode())
    body = HttpBody(body=json.dumps(document).encode(), end_of_stream=True)
    return [
        ProcessingRequest(request_headers=headers, observability_mode=True),
        ProcessingRequest(request_body=body, observability_mode=True),
    ]


async def observed(stage: Stage, messages: Sequence[ProcessingRequest]) -> dict[str, Any] | None:
    """The end of the only request that the journal has then, with its events; None where it has none."""
    stream = FakeStream(list(messages))
    await stage.service.process(stream)
    assert stream.sent == []
    await asyncio.gather(*stage.service._outliving)
    histories = await stage.journal.histories("", 10)
    if not histories:
        return None
    (history,) = histories
    events = await stage.journal.events(history.request_id)
    assert list(verify(History(request_id=history.request_id, events=events, running=False), 0)) == []
    return {"kinds": [str(event.kind) for event in events], "events": events, **events[-1].detail}


@pytest.fixture
def stage() -> Stage:
    return Stage(policy=OBSERVE)


async def test_whole_stream_is_completed_and_enforce_would_have_done_the_same(stage: Stage) -> None:
    end = await observed(
        stage, [*asked(), head(), piece(ROLE), piece(text("a") + text("b")), piece(FINISH + DONE), piece(last=True)]
    )
    assert end is not None
    assert (end["outcome"], end["enforce_would"], end["delivered_output_tokens"]) == ("completed", "same", 2)
    assert end["kinds"] == ["admitted", "attempt_started", "response_started", "first_delta_sent", "ended"]
    facts = await stage.facts(end["events"][0].request_id)
    assert facts.traits == {"mode": "observe", "x_request_id": "client-1"}


async def test_a_watched_requests_body_is_let_go_of_since_nothing_is_sent_again(stage: Stage, monkeypatch) -> None:
    kept = []
    observe = watched.Observation

    def note(**arguments: Any) -> Any:
        kept.append(arguments["request"].body.data)
        return observe(**arguments)

    monkeypatch.setattr(watched, "Observation", note)
    assert await observed(stage, [*asked(), head(), piece(text("a") + FINISH + DONE), piece(last=True)])
    assert kept == [b""]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_only_a_watched_streams_first_delta_tells_how_fast_prompts_are_read(stage: Stage, stream: bool) -> None:
    now = [0]

    def later() -> int:
        now[0] += 100
        return now[0]

    object.__setattr__(stage.service._world, "now_ms", later)
    question = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "word " * 1_000}]}
    answer = json.dumps({"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}).encode()
    told = [head(), piece(text("a") + FINISH + DONE)] if stream else [head(content_type="application/json"), piece(answer)]
    assert await observed(stage, [*asked(question), *told, piece(last=True)])
    assert (stage.service._world.pools.of("m").cost_of(5_000).prefill_ms is not None) is stream


@pytest.mark.parametrize(
    ("messages", "outcome", "reason", "would", "code"),
    [
        ([head(), piece(ROLE), piece(ERROR + DONE, last=True)], "failed", "engine_error", "repeat", None),
        (
            [head(), piece(text("a")), piece(ERROR + DONE, last=True)],
            "interrupted",
            "engine_error",
            "terminal_event",
            "upstream_decode_interrupted",
        ),
        ([head(), piece(ROLE), piece(last=True)], "failed", "engine_error", "repeat", None),
        ([head(), piece(text("a")), piece(FINISH, last=True)], "completed", "finished", "same", None),
        ([head(404, "application/json"), piece(b"{}", last=True)], "failed", "request_error_404", "same", None),
        ([head(500, "application/json"), piece(b"{}", last=True)], "failed", "engine_error", "repeat", None),
        ([head(503, response__flags=32, response__code_details="connect failure")], "failed", "never_started", "repeat", None),
        ([head(503, response__flags=64, response__code_details="reset")], "failed", "replica_gone", "repeat", None),
        ([head(503, response__flags=1 << 40, response__code_details="new")], "failed", "uncertain", "repeat", None),
        ([head(content_type="application/json"), piece(b'{"cho', last=True)], "failed", "engine_error", "repeat", None),
    ],
)
async def test_end_is_read_as_enforce_would_read_it(
    stage: Stage, messages: list[ProcessingRequest], outcome: str, reason: str, would: str, code: str | None
) -> None:
    end = await observed(stage, [*asked(), *messages])
    assert end is not None
    assert (end["outcome"], end["reason"], end["enforce_would"], end.get("enforce_code")) == (outcome, reason, would, code)


async def test_last_replica_and_an_empty_budget_would_have_been_honest_errors() -> None:
    failing = [*asked(), head(), piece(ROLE), piece(ERROR, last=True)]
    alone = await observed(Stage(policy=OBSERVE, replicas=(A,)), failing)
    poor = Policy(mode=Mode.OBSERVE, retry_budget=RetryBudgetPolicy(percent=0, min_per_second=0.0, burst=0))
    broke = await observed(Stage(policy=poor), failing)
    assert alone is not None
    assert broke is not None
    assert (alone["enforce_would"], alone["enforce_code"]) == ("error", "no_healthy_replica")
    assert (broke["enforce_would"], broke["enforce_code"]) == ("error", "retry_budget_exhausted")
    assert str(EventKind.REPEAT_REFUSED) in broke["kinds"]


async def test_stream_that_was_cut_is_the_replicas_fault_only_where_nothing_listens_there(stage: Stage) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and listens to nobody
        gone = f"127.0.0.1:{bound.getsockname()[1]}"
        end = await observed(stage, [*asked(), head(upstream__address=gone), piece(text("a"))])
    assert end is not None
    assert (end["outcome"], end["reason"], end["enforce_would"]) == ("interrupted", "replica_gone", "terminal_event")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        alive = f"127.0.0.1:{listening.getsockname()[1]}"
        end = await observed(Stage(policy=OBSERVE), [*asked(), head(upstream__address=alive), piece(text("a"))])
    assert end is not None
    assert (end["outcome"], end["reason"]) == ("cancelled", "cut")


async def test_client_that_leaves_before_any_answer_is_a_cut(stage: Stage) -> None:
    end = await observed(stage, asked())
    assert end is not None
    assert (end["outcome"], end["kinds"]) == ("cancelled", ["admitted", "attempt_started", "ended"])


async def test_answer_in_one_piece_is_read_whole(stage: Stage) -> None:
    answer = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "hi"}}], "usage": {"completion_tokens": 7}}
    data = json.dumps(answer).encode()
    end = await observed(stage, [*asked(), head(content_type="application/json"), piece(data[:9]), piece(data[9:], last=True)])
    assert end is not None
    assert (end["outcome"], end["delivered_output_tokens"]) == ("completed", 7)


@pytest.mark.parametrize("document", [["no", "object"], {"model": "m", "prompt": "x" * (2 << 20)}])
async def test_request_that_cannot_be_read_is_left_unobserved(stage: Stage, document: Any) -> None:
    assert await observed(stage, [*asked(document), head(), piece(text("a"), last=True)]) is None


async def test_answer_that_outgrows_the_memory_is_still_an_answer(stage: Stage) -> None:
    stage = Stage(policy=OBSERVE, held_bytes_max=10)
    end = await observed(stage, [*asked(), head(content_type="application/json"), piece(b"x" * 99), piece(b"y", last=True)])
    assert end is not None
    assert (end["outcome"], end["enforce_would"]) == ("completed", "same")


def test_envoys_own_answer_is_told_from_a_replicas() -> None:
    plain = ResponseHead(status=503, headers=())
    assert with_envoys_flags(plain, 0, "via_upstream") is plain
    assert with_envoys_flags(plain, 1 << 23, "protocol error").get("x-egress-flags") == "UPE"


async def test_address_that_is_none_proves_nothing() -> None:
    assert await refuses_connections("nowhere") is False
    assert await asyncio.wait_for(refuses_connections("127.0.0.1:99999"), 5) is False

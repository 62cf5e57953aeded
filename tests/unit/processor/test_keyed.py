"""What a repeated Idempotency-Key is answered, and which answers are kept for it."""

import json

import pytest

from extproc.contract import headers as names
from extproc.decision.idempotency import ClaimOutcome
from extproc.journal.idempotency import Claimed, KeyClaim, StoredAnswer
from extproc.journal.interface import JournalUnavailable
from extproc.journal.memory import MemoryJournal
from extproc.journal.memory_keys import MemoryKeys
from extproc.journal.records import AttemptFacts, RequestFacts
from extproc.processor.client_stream import ClientStream, make_head
from extproc.processor.intake import RequestRejected
from extproc.processor.keyed import KeptClientStream, answer_repeat, read_claim
from extproc.processor.messages import RequestHeaders
from extproc.sse.dialects import Dialect
from tests.unit.processor.stage import FakeStream

FACTS = RequestFacts(
    request_id="req_1",
    api="chat",
    model="m",
    route="chat",
    stream=True,
    admitted_at_ms=1,
    phase="ended",
    attempts=(AttemptFacts(attempt_id="att_1", replica="a", started_at_ms=1),),
    first_delta_sent=True,
    delivered_output_tokens=7,
    outcome="interrupted",
    reason="replica_gone",
)


def head(*headers: tuple[str, str]) -> RequestHeaders:
    return RequestHeaders(method="POST", path="/v1/chat/completions", authority="a", headers=headers, end_of_stream=False)


def claim(*headers: tuple[str, str], body: bytes = b"{}") -> KeyClaim | None:
    return read_claim(head(*headers), body, request_id="req_1", secret=b"secret", caller_header="authorization")


def test_a_request_without_a_key_asks_nothing():
    assert claim(("content-type", "application/json")) is None


def test_a_key_is_its_callers_and_its_fingerprint_is_the_whole_request():
    first = claim((names.IDEMPOTENCY_KEY, '"k"'), ("authorization", "Bearer a"))
    again = claim((names.IDEMPOTENCY_KEY, "k"), ("authorization", "Bearer a"), ("user-agent", "x"))
    other_caller = claim((names.IDEMPOTENCY_KEY, "k"), ("authorization", "Bearer b"))
    other_body = claim((names.IDEMPOTENCY_KEY, "k"), ("authorization", "Bearer a"), body=b"{ }")
    assert first is not None
    assert other_caller is not None
    assert other_body is not None
    assert first == again
    assert first.key_hash != other_caller.key_hash
    assert (first.key_hash, first.fingerprint != other_body.fingerprint) == (other_body.key_hash, True)


def test_what_is_no_key_is_refused():
    with pytest.raises(RequestRejected) as refusal:
        claim((names.IDEMPOTENCY_KEY, "a"), (names.IDEMPOTENCY_KEY, "b"))
    assert refusal.value.code == "invalid_idempotency_key"


async def answer_to(claimed: Claimed, replay: bool = False, dialect: Dialect = Dialect.CHAT) -> FakeStream:
    stream = FakeStream([])
    await answer_repeat(ClientStream(stream.write), dialect, claimed, replay=replay)
    return stream


@pytest.mark.parametrize("dialect", Dialect)
async def test_after_a_partial_delivery_the_facts_are_attached(dialect: Dialect):
    stream = await answer_to(Claimed(outcome=ClaimOutcome.PARTIAL, request_id="req_1", facts=FACTS), dialect=dialect)
    error = json.loads(stream.body)["error"]
    assert stream.status == 409
    assert (error["code"] if dialect is not Dialect.MESSAGES else error["details"]["error_code"]) == "partial_output_exists"
    assert (error["request_id"], error["partial_output"], error["delivered_output_tokens"]) == ("req_1", True, 7)
    assert (error["reason"], error["attempts"], error["retryable"]) == ("replica_gone", 1, False)
    assert (stream.header(names.REQUEST_ID), stream.header(names.SHOULD_RETRY)) == ("req_1", "false")


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (ClaimOutcome.IN_PROGRESS, 409, "request_in_progress"),
        (ClaimOutcome.COMPLETED, 409, "request_completed"),
        (ClaimOutcome.KEY_REUSED, 422, "idempotency_key_reused"),
    ],
)
async def test_every_other_repeat_is_told_what_it_is(outcome: ClaimOutcome, status: int, code: str):
    stream = await answer_to(Claimed(outcome=outcome, request_id="req_1", facts=FACTS))
    error = json.loads(stream.body)["error"]
    assert (stream.status, error["code"], error["partial_output"]) == (status, code, False)


async def test_of_another_request_nothing_is_told():
    stream = await answer_to(Claimed(outcome=ClaimOutcome.KEY_REUSED, request_id="req_1", facts=FACTS))
    error = json.loads(stream.body)["error"]
    assert (error["request_id"], error["delivered_output_tokens"], error["reason"]) == ("", 0, "key_reused")


ANSWER = StoredAnswer(
    status=200, headers=(("content-type", "text/event-stream"), (names.REQUEST_ID, "req_1")), body=b"data: Hi\n\n"
)


async def test_a_stored_answer_is_given_only_where_the_route_wants_it():
    claimed = Claimed(outcome=ClaimOutcome.COMPLETED, request_id="req_1", facts=FACTS, answer=ANSWER)
    stream = await answer_to(claimed, replay=True)
    assert (stream.status, stream.body, stream.header(names.REPLAYED)) == (200, b"data: Hi\n\n", "true")
    assert (stream.header(names.REQUEST_ID), stream.ended) == ("req_1", True)
    assert (await answer_to(claimed, replay=False)).status == 409


class Keys(MemoryKeys):
    """Remembers what was stored, and what had been written then."""

    def __init__(self, stream: FakeStream) -> None:
        super().__init__(MemoryJournal(), lambda: 0)
        self.stream = stream
        self.stored: list[tuple[StoredAnswer, bool]] = []
        self.away = False

    async def store_answer(self, request_id: str, answer: StoredAnswer) -> None:
        if self.away:
            raise JournalUnavailable("disk full")
        self.stored.append((answer, self.stream.ended))


async def deliver(keys: Keys, *pieces: bytes, bytes_max: int = 100) -> None:
    client = KeptClientStream(keys.stream.write, keys=keys, bytes_max=bytes_max)
    client.keep_for("req_1")
    await client.begin(make_head(200, [("content-type", "text/event-stream")]))
    for piece in pieces[:-1]:
        await client.write(piece)
    await client.keep(pieces[-1])
    await client.end(pieces[-1], {"outcome": "completed"})


async def test_a_whole_answer_is_stored_before_its_end_goes_out():
    keys = Keys(FakeStream([]))
    await deliver(keys, b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n")
    ((answer, ended),) = keys.stored
    assert answer == StoredAnswer(
        status=200, headers=(("content-type", "text/event-stream"),), body=b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    )
    assert not ended
    assert keys.stream.body == answer.body
    assert keys.stream.ended


async def test_an_answer_that_is_too_long_is_delivered_and_not_stored():
    keys = Keys(FakeStream([]))
    await deliver(keys, b"x" * 60, b"y" * 60)
    assert (keys.stored, len(keys.stream.body)) == ([], 120)


async def test_an_answer_that_can_not_be_stored_is_delivered(caplog: pytest.LogCaptureFixture):
    keys = Keys(FakeStream([]))
    keys.away = True
    await deliver(keys, b"data: 1\n\n", b"")
    assert keys.stream.ended
    assert "not kept for repeats" in caplog.text


async def test_the_copy_is_everything_that_was_written_up_to_its_bound():
    client = KeptClientStream(FakeStream([]).write, keys=Keys(FakeStream([])), bytes_max=10)
    await client.begin(make_head(200, []))
    await client.write(b"12345")
    await client.end(b"6789abc", {})
    assert client.copy == b"123456789a"
    refused = KeptClientStream(FakeStream([]).write, keys=Keys(FakeStream([])), bytes_max=10)
    await refused.answer(503, [], b"{}", details="x", metadata={})
    assert refused.copy == b"{}"

import pytest

from extproc.sim.faults import Fault, FaultBook, What, Where, decode_fault, encode_fault, format_fault, parse_fault

FULL = Fault(
    where=Where.MID_DECODE,
    what=What.RESET,
    deltas=2,
    times=1,
    nth=2,
    body_contains="marker",
    header="x-test=1",
    delay_ms=1.5,
    status=7,
    retry_after_s=3,
    factor=2.0,
    message="boom",
)


@pytest.mark.parametrize("fault", [FULL, Fault(where=Where.AFTER_ROLE, what=What.KILL)])
def test_fault_survives_text_and_json(fault: Fault) -> None:
    assert parse_fault(format_fault(fault)) == fault
    assert decode_fault(encode_fault(fault)) == fault


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nowhere:kill", "nowhere"),
        ("after_role:nothing", "nothing"),
        ("after_role", "not a valid What"),
        ("after_role:http_error", "before_headers only"),
        ("inside_event:abort", "can't follow half of an event"),
        ("mid_body:error_event", "can't follow half of an event"),
        ("after_done:abort", "abort is a finish"),
        ("after_role:kill,nth=2", "nth counts the requests with a header"),
        ("after_role:kill,colour=red", "unknown key in a fault: colour"),
        ("after_role:kill,times=many", "many"),
    ],
)
def test_impossible_fault_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_fault(text)


def claim(book: FaultBook, *, stream: bool = True, body: bytes = b"", headers: dict[str, str] | None = None) -> int:
    return len(book.claim(stream=stream, body=body, headers=headers or {}))


def book_of(**options: object) -> FaultBook:
    book = FaultBook()
    book.arm([Fault(**({"where": Where.AFTER_ROLE, "what": What.KILL} | options))])
    return book


def test_limited_fault_belongs_to_the_first_requests_by_arrival() -> None:
    book = book_of(times=2)
    assert [claim(book), claim(book), claim(book)] == [1, 1, 0]
    assert book.listing()[0]["left"] == 0


def test_marked_fault_is_not_used_up_by_other_requests() -> None:
    book = book_of(times=1, body_contains="here")
    assert [claim(book, body=b"nothing"), claim(book, body=b"it is here")] == [0, 1]


@pytest.mark.parametrize(
    ("header", "headers", "claimed"),
    [
        ("x-mark", {}, 0),
        ("x-mark", {"x-mark": "any"}, 1),
        ("X-Mark=1", {"x-mark": "1"}, 1),
        ("x-mark=1", {"x-mark": "2"}, 0),
    ],
)
def test_fault_with_a_header_is_for_requests_that_carry_it(header: str, headers: dict[str, str], claimed: int) -> None:
    assert claim(book_of(header=header), headers=headers) == claimed


@pytest.mark.parametrize(
    ("where", "what", "stream", "claimed"),
    [
        (Where.AFTER_ROLE, What.KILL, True, 1),
        (Where.AFTER_ROLE, What.KILL, False, 0),
        (Where.MID_BODY, What.KILL, True, 0),
        (Where.MID_BODY, What.KILL, False, 1),
        (Where.AFTER_HEADERS, What.ABORT, True, 1),
        (Where.AFTER_HEADERS, What.ABORT, False, 0),
        (Where.AFTER_HEADERS, What.CLOSE, False, 1),
    ],
)
def test_fault_is_only_for_requests_that_can_reach_it(where: Where, what: What, stream: bool, claimed: int) -> None:
    assert claim(book_of(where=where, what=what), stream=stream) == claimed


@pytest.mark.parametrize(
    ("fault", "deltas"),
    [
        (Fault(where=Where.MID_DECODE, what=What.KILL), 3),
        (Fault(where=Where.MID_DECODE, what=What.KILL, deltas=7), 7),
        (Fault(where=Where.INSIDE_EVENT, what=What.KILL), 0),
        (Fault(where=Where.AFTER_TOKEN_COMPUTED, what=What.KILL, deltas=1), 1),
    ],
)
def test_counting_place_is_reached_at_one_count(fault: Fault, deltas: int) -> None:
    assert [count for count in range(10) if fault.is_at(fault.where, count)] == [deltas]


def test_fault_for_the_nth_attempt_needs_a_place_to_count_in() -> None:
    with pytest.raises(ValueError, match="nth needs --claims"):
        book_of(nth=1, header="x-mark")

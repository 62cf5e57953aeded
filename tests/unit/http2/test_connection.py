"""What a connection does when nobody breaks a rule: events, windows, ends."""

import pytest

from extproc.http2.errors import Code, code_name
from extproc.http2.events import DataReceived, Drained, GoingAway, HeadReceived, StreamBroken, TrailersReceived
from extproc.http2.limits import Limits
from extproc.http2.streams import Role
from tests.unit.http2.probe import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    REQUEST,
    RESPONSE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Probe,
    number,
    raw,
    setting,
)


def data_said(probe: Probe, stream_id: int = 1) -> bytes:
    return b"".join(frame.data for frame in probe.said() if frame.type == DATA and frame.stream_id == stream_id)


def test_each_end_introduces_itself_with_what_it_allows():
    limits = Limits(streams_max=7, stream_window=70_000, connection_window=100_000, header_bytes_max=9_000)
    for role, own in ((Role.SERVER, {3: 7}), (Role.CLIENT, {2: 0})):
        settings, update = Probe(role, limits, introduced=False).said()
        assert settings.settings == {4: 70_000, 6: 9_000, **own}
        assert (update.stream_id, update.window_increment) == (0, 100_000 - 65_535)
    small = Probe(limits=Limits(connection_window=65_535), introduced=False).said()
    assert [frame.type for frame in small] == [SETTINGS]


def test_settings_are_acknowledged_and_pings_are_answered():
    probe = Probe()
    probe.give(setting(3, 1), raw(PING, 0, 0, b"12345678"), raw(SETTINGS, ACK), raw(PING, ACK, 0, bytes(8)))
    acknowledgement, answer = probe.said()
    assert (acknowledgement.type, acknowledgement.flags) == (SETTINGS, {"ACK"})
    assert (answer.type, answer.flags, answer.opaque_data) == (PING, {"ACK"}, b"12345678")
    assert probe.events == []


def test_a_request_in_pieces_of_one_byte_is_the_same_request():
    whole, dripped = Probe(), Probe()
    for probe in (whole, dripped):
        said = (
            probe.head(1, (*REQUEST, ("x-name", "\xe9"), ("content-length", "4")))
            + raw(DATA, 0, 1, b"ab")
            + raw(DATA, 0, 1, b"cd")
            + probe.head(1, (("x-end", "1"),), end=True)
        )
        for index in range(len(said)) if probe is dripped else ():
            probe.give(said[index : index + 1])
        if probe is whole:
            probe.give(said)
    assert whole.events == dripped.events
    head, first, second, trailers = whole.events
    assert isinstance(head, HeadReceived)
    assert head.fields[-2] == ("x-name", "\xc3\xa9"), "the two bytes of UTF-8, each as one character"
    assert (first, second) == (DataReceived(1, b"ab", False), DataReceived(1, b"cd", False))
    assert trailers == TrailersReceived(1, [("x-end", "1")])


def test_a_block_in_several_frames_with_padding_and_priority_is_one_head():
    probe = Probe()
    block = probe.encoder.encode(REQUEST)
    first = raw(HEADERS, PADDED | WITH_PRIORITY | END_STREAM, 1, b"\x02" + bytes(5) + block[:3] + bytes(2))
    probe.give(first, raw(CONTINUATION, 0, 1, block[3:6]), raw(CONTINUATION, END_HEADERS, 1, block[6:]))
    assert probe.events == [HeadReceived(1, list(REQUEST), True)]


def test_what_is_not_known_or_not_used_is_ignored():
    probe = Probe()
    probe.open()
    probe.give(raw(0xBE, 0xFF, 9, b"?"), raw(PRIORITY, 0, 99, bytes(5)), setting(0x99, 5), setting(1, 0), setting(2, 1))
    probe.give(raw(RST_STREAM, 0, 1, number(0x77)), raw(RST_STREAM, 0, 1, number(0)), raw(WINDOW_UPDATE, 0, 1, number(9)))
    assert probe.events == [StreamBroken(1, 0x77, "reset by the peer (0x77)")]
    assert probe.connection_error is None
    assert code_name(Code.CANCEL) == "CANCEL"


def test_connect_is_a_request_with_an_authority_alone():
    probe = Probe()
    probe.give(probe.head(1, ((":method", "CONNECT"), (":authority", "a:1"))))
    assert isinstance(probe.events[0], HeadReceived)


def test_a_response_that_ends_with_its_head_needs_no_body():
    """RFC 9113 section 8.1.1: a response to HEAD, and a 304."""
    probe = Probe(Role.CLIENT)
    probe.connection.open_stream(((":method", "HEAD"), *REQUEST[1:]), end_stream=True)
    probe.give(probe.head(1, (*RESPONSE, ("content-length", "5")), end=True))
    assert probe.events == [HeadReceived(1, [*RESPONSE, ("content-length", "5")], True)]
    assert probe.connection.streams == 0


def test_interim_responses_are_passed_over():
    probe = Probe(Role.CLIENT)
    probe.connection.open_stream(REQUEST, end_stream=True)
    probe.give(probe.head(1, ((":status", "103"), ("link", "a"))), probe.head(1, RESPONSE))
    assert probe.events == [HeadReceived(1, list(RESPONSE), False)]


# --- sending ---


def test_data_waits_for_its_stream_and_is_told_when_it_has_gone():
    probe = Probe()
    probe.give(setting(4, 10))
    probe.open()
    assert probe.connection.send_data(1, b"0123456789")
    assert not probe.connection.send_data(1, b"abcde")
    assert not probe.connection.send_data(1, b"fg", end_stream=True)
    assert data_said(probe) == b"0123456789"
    assert probe.give(raw(WINDOW_UPDATE, 0, 1, number(3))) == []
    assert data_said(probe) == b"abc"
    assert probe.give(raw(WINDOW_UPDATE, 0, 1, number(9))) == [Drained(1)]
    frames = probe.said()
    assert [(frame.data, "END_STREAM" in frame.flags) for frame in frames] == [(b"de", False), (b"fg", True)]


def test_data_that_may_not_wait_is_sent_whole_or_not_at_all():
    probe = Probe()
    probe.give(setting(4, 10))
    probe.open()
    assert probe.connection.send_data_now(1, b"0123456")
    assert not probe.connection.send_data_now(1, b"789a")
    assert data_said(probe) == b"0123456"
    assert not probe.connection.send_data(1, b"789a")
    assert not probe.connection.send_data_now(1, b""), "not even nothing overtakes what waits"
    assert data_said(probe) == b"789"
    probe.give(raw(RST_STREAM, 0, 1, number(8)))
    assert not probe.connection.send_data_now(1, b"b")


def test_an_end_without_data_needs_no_room():
    probe = Probe()
    probe.give(setting(4, 0))
    probe.open()
    assert probe.connection.send_data(1, b"", end_stream=True)
    (frame,) = probe.said()
    assert (frame.data, frame.flags) == (b"", {"END_STREAM"})


def test_an_end_that_waits_behind_data_goes_with_it():
    probe = Probe()
    probe.give(setting(4, 0))
    probe.open()
    assert not probe.connection.send_data(1, b"ab")
    assert not probe.connection.send_data(1, b"", end_stream=True)
    assert probe.give(setting(4, 100)) == [Drained(1)]
    assert [(frame.data, frame.flags) for frame in probe.said() if frame.type == DATA] == [(b"ab", set()), (b"", {"END_STREAM"})]


def test_streams_take_turns_when_the_connection_has_room_again():
    probe = Probe()
    probe.give(setting(4, 2**20))
    for stream_id in (1, 3, 5):
        probe.open(stream_id)
    probe.connection.send_data(1, bytes(65_535))
    probe.said()
    for stream_id in (1, 3, 5):
        assert not probe.connection.send_data(stream_id, bytes(40_000))
    probe.give(raw(WINDOW_UPDATE, 0, 0, number(40_000)))
    assert [(frame.stream_id, len(frame.data)) for frame in probe.said()] == [(1, 16_384), (3, 16_384), (5, 7_232)]
    assert probe.give(raw(WINDOW_UPDATE, 0, 0, number(2**20))) == [Drained(1), Drained(3), Drained(5)]


def test_a_smaller_initial_window_takes_room_from_open_streams():
    """RFC 9113 section 6.9.2: a window may become negative."""
    probe = Probe()
    probe.give(setting(4, 100))
    probe.open()
    probe.connection.send_data(1, bytes(80))
    probe.give(setting(4, 50))
    probe.said()
    assert not probe.connection.send_data(1, b"abc")
    probe.give(raw(WINDOW_UPDATE, 0, 1, number(30)))
    assert data_said(probe) == b""
    assert probe.give(raw(WINDOW_UPDATE, 0, 1, number(3))) == [Drained(1)]


def test_an_end_without_data_takes_nothing_from_a_negative_window_and_gives_nothing_to_others():
    probe = Probe()
    probe.give(setting(4, 2**20))
    probe.open(1)
    probe.open(3)
    assert probe.connection.send_data(1, bytes(80))
    assert not probe.connection.send_data(3, bytes(65_535)), "the connection's window is used up"
    probe.give(setting(4, 50), raw(WINDOW_UPDATE, 0, 3, number(2**20)))
    probe.said()
    assert probe.connection.send_data(1, b"", end_stream=True)
    assert [(frame.stream_id, frame.data, frame.flags) for frame in probe.said()] == [(1, b"", {"END_STREAM"})]


def test_larger_frames_are_sent_where_the_peer_takes_them():
    probe = Probe()
    probe.give(setting(5, 40_000))
    probe.open()
    probe.connection.send_data(1, bytes(50_000))
    assert [len(frame.data) for frame in probe.said() if frame.type == DATA] == [40_000, 10_000]


def test_a_large_head_is_sent_in_several_frames():
    probe = Probe()
    probe.open()
    probe.connection.send_fields(1, [*RESPONSE, ("x-large", "a" * 40_000)], end_stream=True)
    frames = probe.said()
    assert [(frame.type, sorted(frame.flags)) for frame in frames] == [
        (HEADERS, ["END_STREAM"]),
        (CONTINUATION, []),
        (CONTINUATION, ["END_HEADERS"]),
    ]


def test_nothing_is_sent_on_a_stream_that_is_over():
    probe = Probe()
    probe.give(setting(4, 2))
    probe.open()
    assert not probe.connection.send_data(1, b"abc")
    probe.give(raw(RST_STREAM, 0, 1, number(8)))
    probe.said()
    assert probe.connection.send_data(1, b"d")
    probe.connection.send_fields(1, RESPONSE, end_stream=True)
    probe.connection.reset_stream(1, Code.CANCEL)
    probe.connection.acknowledge(1, 10)
    assert probe.give(raw(WINDOW_UPDATE, 0, 0, number(100))) == []
    assert probe.said() == []


@pytest.mark.parametrize(
    "field",
    [("X-Upper", "a"), ("x name", "a"), ("x", "a\nb"), ("x", " a"), ("x", "a "), ("x", "\0")],
)
def test_fields_that_http2_does_not_allow_are_not_sent(field: tuple[str, str]):
    probe = Probe(Role.CLIENT)
    with pytest.raises(ValueError, match="can't be sent"):
        probe.connection.open_stream([*REQUEST, field], end_stream=True)
    assert probe.said() == []
    assert probe.connection.streams == 0


def test_secrets_are_marked_never_to_be_indexed():
    probe = Probe(Role.CLIENT)
    probe.connection.open_stream([*REQUEST, ("authorization", "Bearer secret"), ("x-deltafence-token", "t")], end_stream=True)
    (head,) = probe.said()
    # RFC 7541 section 6.2.3: 0001 and the index of the name, or 0 and the name.
    assert b"\x1f\x08\x0dBearer secret" in head.data
    assert b"\x10\x12x-deltafence-token\x01t" in head.data


def test_a_caller_may_not_send_after_its_end():
    probe = Probe()
    probe.open()
    probe.connection.send_data(1, b"", end_stream=True)
    with pytest.raises(AssertionError):
        probe.connection.send_data(1, b"a")
    with pytest.raises(AssertionError):
        probe.connection.send_fields(1, RESPONSE, end_stream=True)


# --- receiving ---


def test_room_is_given_back_to_the_connection_on_arrival_and_to_the_stream_when_used():
    probe = Probe(limits=Limits(stream_window=100_000, connection_window=120_000))
    probe.open()
    for _ in range(4):
        probe.give(raw(DATA, 0, 1, bytes(16_384)))
    (update,) = probe.said()
    assert (update.type, update.stream_id, update.window_increment) == (WINDOW_UPDATE, 0, 65_536)
    probe.connection.acknowledge(1, 40_000)
    assert probe.said() == []
    probe.connection.acknowledge(1, 10_000)
    (update,) = probe.said()
    assert (update.stream_id, update.window_increment) == (1, 50_000)


def test_padding_is_used_up_at_once():
    probe = Probe(limits=Limits(stream_window=65_535))
    probe.open()
    for _ in range(300):
        probe.give(raw(DATA, PADDED, 1, b"\xff" + b"a" + bytes(255)))
        probe.connection.acknowledge(1, 1)
    assert probe.stream_error() is None
    assert set(probe.events) == {DataReceived(1, b"a", False)}


def test_no_room_is_given_to_a_stream_that_has_ended():
    probe = Probe(limits=Limits(stream_window=65_535))
    probe.open()
    probe.give(*[raw(DATA, 0, 1, bytes(16_000))] * 4, raw(DATA, END_STREAM, 1, b""))
    probe.said()
    probe.connection.acknowledge(1, 64_000)
    assert probe.said() == []


def test_frames_that_crossed_a_reset_of_ours_are_ignored_but_counted():
    probe = Probe(limits=Limits(connection_window=65_535))
    probe.open()
    probe.connection.reset_stream(1, Code.CANCEL)
    (reset,) = probe.said()
    assert (reset.type, reset.error_code) == (RST_STREAM, Code.CANCEL)
    probe.give(*[raw(DATA, 0, 1, bytes(16_000))] * 3, probe.head(1, (("x-late", "1"),), end=True))
    assert probe.events == []
    assert [(frame.type, frame.stream_id) for frame in probe.said()] == [(WINDOW_UPDATE, 0)]
    probe.give(probe.head(3, (*REQUEST, ("x-late", "1"))))
    assert probe.events == [HeadReceived(3, [*REQUEST, ("x-late", "1")], False)], "the late head was decoded"


# --- the end of a connection ---


def test_shutting_down_serves_what_crossed_the_news_and_refuses_the_rest():
    probe = Probe()
    probe.open(1)
    probe.connection.shut_down()
    first, ping = probe.said()
    assert (first.type, first.last_stream_id, first.error_code) == (GOAWAY, 2**31 - 1, 0)
    probe.give(probe.head(3))
    assert [type(event) for event in probe.events] == [HeadReceived]
    probe.give(raw(PING, ACK, 0, ping.opaque_data), raw(PING, ACK, 0, ping.opaque_data))
    (last,) = probe.said()
    assert (last.type, last.last_stream_id) == (GOAWAY, 3)
    probe.give(probe.head(5))
    assert probe.stream_error(5) == Code.REFUSED_STREAM
    assert probe.connection.streams == 2


def test_a_peer_that_goes_away_gets_no_new_streams_and_names_those_that_it_never_saw():
    probe = Probe(Role.CLIENT)
    for _ in range(3):
        probe.connection.open_stream(REQUEST, end_stream=True)
    assert probe.connection.can_open_stream
    probe.give(raw(GOAWAY, 0, 0, number(3) + number(0) + b"maintenance"))
    assert probe.events == [
        StreamBroken(5, Code.REFUSED_STREAM, "the peer is going away (NO_ERROR maintenance)"),
        GoingAway(Code.NO_ERROR, "NO_ERROR maintenance"),
    ]
    assert not probe.connection.can_open_stream
    with pytest.raises(AssertionError):
        probe.connection.open_stream(REQUEST, end_stream=True)
    probe.give(probe.head(3, RESPONSE, end=True))
    assert probe.events[-1] == HeadReceived(3, list(RESPONSE), True)


def test_a_peer_may_limit_how_many_streams_it_takes():
    probe = Probe(Role.CLIENT)
    probe.give(setting(3, 1))
    probe.connection.open_stream(REQUEST, end_stream=True)
    assert not probe.connection.can_open_stream
    probe.give(probe.head(1, RESPONSE, end=True))
    assert probe.connection.can_open_stream


def test_output_is_there_exactly_when_it_says_so():
    probe = Probe()
    assert not probe.connection.has_output
    assert probe.connection.take_output() == b""
    probe.give(raw(PING, 0, 0, bytes(8)))
    assert probe.connection.has_output
    assert probe.connection.take_output() == raw(PING, ACK, 0, bytes(8))

"""Floods, each by its public name: what is borne, and from where on not."""

from collections.abc import Callable

import pytest

from extproc.http2.errors import Code
from extproc.http2.events import DataReceived, HeadReceived, StreamBroken
from extproc.http2.limits import EXCUSED_BY_SUBSTANCE, Limits
from extproc.http2.streams import Role
from tests.unit.http2.probe import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Probe,
    number,
    raw,
)

ONE_PING = raw(PING, 0, 0, bytes(8))


def test_cve_2019_9512_answers_to_ping_are_not_piled_up():
    probe = Probe(limits=Limits(replies_max=5))
    probe.give(ONE_PING * 5)
    assert probe.connection_error is None
    probe.give(ONE_PING * 6)
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def test_pings_whose_answers_are_read_are_borne_for_ever():
    probe = Probe(limits=Limits(replies_max=5, idle_frames_max=5))
    for _ in range(100):
        probe.give(ONE_PING)
        assert [(frame.type, "ACK" in frame.flags) for frame in probe.said()] == [(PING, True)]


def test_cve_2019_9515_answers_to_settings_are_not_piled_up():
    probe = Probe(limits=Limits(replies_max=5))
    probe.give(raw(SETTINGS) * 6)
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "useless",
    [
        raw(DATA, 0, 1),
        raw(PRIORITY, 0, 1, bytes(5)),
        raw(0x77, 0, 1, b"?"),
        raw(WINDOW_UPDATE, 0, 0, number(1)),
        raw(WINDOW_UPDATE, 0, 1, number(1)),
        raw(SETTINGS, ACK),
        raw(PING, ACK, 0, bytes(8)),
    ],
    ids=["empty DATA", "PRIORITY", "unknown", "WINDOW_UPDATE", "WINDOW_UPDATE of a stream", "SETTINGS ACK", "PING ACK"],
)
def test_cve_2019_9518_frames_without_substance_are_counted(useless: bytes):
    probe = Probe(limits=Limits(idle_frames_max=20))
    probe.open()
    probe.give(useless * 20)
    assert probe.connection_error is None
    probe.give(raw(DATA, 0, 1, b"a"))
    probe.give(useless * EXCUSED_BY_SUBSTANCE)
    assert probe.connection_error is None, "one frame of substance excuses ten"
    probe.give(useless)
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def test_what_we_send_excuses_the_updates_that_it_causes():
    probe = Probe(limits=Limits(idle_frames_max=20))
    probe.open()
    for _ in range(100):
        probe.connection.send_data(1, b"delta")
        probe.give(raw(WINDOW_UPDATE, 0, 1, number(5)), raw(WINDOW_UPDATE, 0, 0, number(5)))
    assert probe.connection_error is None


@pytest.mark.parametrize("piece", [b"", b"\x82"], ids=["empty", "one byte"])
def test_cve_2024_27316_a_block_of_many_continuations_is_ended(piece: bytes):
    probe = Probe(limits=Limits(header_frames_max=8))
    probe.give(raw(HEADERS, 0, 1, b"\x82"), raw(CONTINUATION, 0, 1, piece) * 8)
    assert probe.connection_error is None
    probe.give(raw(CONTINUATION, 0, 1, piece))
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def test_cve_2024_27316_a_block_of_large_continuations_is_ended():
    probe = Probe(limits=Limits(header_bytes_max=40_000))
    probe.give(raw(HEADERS, 0, 1, bytes(16_384)), raw(CONTINUATION, 0, 1, bytes(16_384)))
    assert probe.connection_error is None
    probe.give(raw(CONTINUATION, 0, 1, bytes(16_384)))
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def test_cve_2016_6581_a_small_block_that_unpacks_to_a_large_list_is_ended():
    probe = Probe(limits=Limits(header_bytes_max=40_000))
    bomb = probe.encoder.encode([*REQUEST, ("x-large", "a" * 4000)]) + b"\xbe" * 20
    probe.give(raw(HEADERS, END_HEADERS, 1, bomb))
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def test_streams_above_the_limit_are_refused_and_may_be_sent_elsewhere():
    probe = Probe(limits=Limits(streams_max=2))
    probe.give(probe.head(1), probe.head(3), probe.head(5))
    assert probe.stream_error(5) == Code.REFUSED_STREAM
    assert [event.stream_id for event in probe.events if isinstance(event, HeadReceived)] == [1, 3]
    probe.give(raw(DATA, 0, 5, b"under way already"))
    assert probe.connection_error is None


def test_cve_2023_44487_a_reset_stream_keeps_its_place_until_our_work_for_it_has_ended():
    probe = Probe(limits=Limits(streams_max=2))
    for stream_id in (1, 3):
        probe.give(probe.head(stream_id), raw(RST_STREAM, 0, stream_id, number(8)))
    probe.give(probe.head(5))
    assert probe.stream_error(5) == Code.REFUSED_STREAM
    probe.connection.release(1)
    probe.give(probe.head(7))
    assert probe.stream_error(7) is None
    assert probe.events[-1] == HeadReceived(7, list(REQUEST), False)


def test_a_crowd_that_leaves_at_once_costs_nobody_elses_streams():
    """Envoy has the streams of all its clients on one connection, and a load balancer that dies takes thousands of them along."""
    probe = Probe(limits=Limits(streams_max=3_000, idle_frames_max=100))
    ids = range(1, 4_001, 2)
    probe.give(*(probe.head(stream_id) for stream_id in ids))
    probe.give(*(raw(RST_STREAM, 0, stream_id, number(8)) for stream_id in ids[500:]))
    assert probe.connection_error is None
    assert len([event for event in probe.events if isinstance(event, StreamBroken)]) == 1_500
    probe.give(raw(DATA, 0, 1, b"still here"))
    assert probe.events[-1] == DataReceived(1, b"still here", False)


def test_resets_of_one_closed_stream_end_the_connection():
    probe = Probe(limits=Limits(idle_frames_max=100))
    probe.give(probe.head(1), *[raw(RST_STREAM, 0, 1, number(8))] * 102)
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def refused(probe: Probe, stream_id: int) -> bytes:
    return probe.head(stream_id)


def malformed(probe: Probe, stream_id: int) -> bytes:
    return probe.head(stream_id, REQUEST[1:])


@pytest.mark.parametrize("head", [refused, malformed])
def test_heads_that_open_nothing_are_not_answered_for_ever(head: Callable[[Probe, int], bytes]):
    probe = Probe(limits=Limits(streams_max=1, replies_max=50, idle_frames_max=50))
    probe.open()
    probe.give(*(head(probe, stream_id) for stream_id in range(3, 3 + 2 * 60, 2)))
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def test_a_peer_that_is_told_of_its_resets_may_still_be_sending():
    """An upload that we have reset is a window full of frames until the peer hears of it."""
    probe = Probe(limits=Limits(idle_frames_max=40))
    probe.open()
    probe.connection.reset_stream(1, Code.CANCEL)
    probe.give(raw(DATA, 0, 1, bytes(1024)) * 40)
    assert probe.connection_error is None
    probe.give(raw(DATA, 0, 1, bytes(1024)))
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def test_resets_of_ours_are_remembered_only_so_far():
    """Where we no longer know, the peer gets the benefit of the doubt."""
    probe = Probe(limits=Limits(streams_max=2000, idle_frames_max=2000))
    for stream_id in range(1, 2 * 1500, 2):
        probe.give(probe.head(stream_id))
        probe.connection.reset_stream(stream_id, Code.CANCEL)
    probe.give(raw(DATA, 0, 1, b"a"), raw(DATA, 0, 2997, b"a"), probe.head(2999))
    assert probe.connection_error is None


def test_interim_responses_are_counted():
    probe = Probe(Role.CLIENT, limits=Limits(idle_frames_max=5))
    probe.connection.open_stream(REQUEST, end_stream=True)
    for _ in range(6):
        probe.give(probe.head(1, ((":status", "103"),)))
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def test_go_away_is_counted():
    probe = Probe(Role.CLIENT, limits=Limits(idle_frames_max=5))
    probe.give(raw(GOAWAY, 0, 0, bytes(8)) * 6)
    assert probe.connection_error == Code.ENHANCE_YOUR_CALM


def test_limits_that_no_peer_could_keep_are_refused():
    for field in ({"stream_window": 65_534}, {"connection_window": 2**31}, {"streams_max": 0}):
        with pytest.raises(AssertionError):
            Limits(**field)


def test_many_streams_that_break_are_each_told():
    probe = Probe(limits=Limits(streams_max=10))
    for stream_id in (1, 3, 5):
        probe.open(stream_id)
        probe.give(raw(DATA, 0, stream_id, b"a"), raw(RST_STREAM, 0, stream_id, number(8)))
    assert probe.events == [
        DataReceived(5, b"a", False),
        StreamBroken(5, Code.CANCEL, "reset by the peer (CANCEL)"),
    ]

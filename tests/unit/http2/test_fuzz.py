"""Whatever arrives, a connection doesn't raise: it says what is wrong, once, in frames that make sense."""

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.http2.connection import Connection
from extproc.http2.events import ConnectionBroken
from extproc.http2.limits import Limits
from extproc.http2.streams import Role
from tests.unit.http2.probe import PREFACE, REQUEST, RESPONSE, SETTINGS, Probe, raw

FRAMES = st.builds(
    raw,
    st.integers(0, 11),
    st.sampled_from([0, 0x1, 0x4, 0x5, 0x8, 0xC, 0xD, 0x20, 0x24, 0x25, 0xFF]),
    st.sampled_from([0, 1, 1, 3, 3, 5, 2, 7, 2**31 - 1, 2**32 - 1]),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([bytes(4), b"\x00\x00\x00\x01", b"\x7f\xff\xff\xff", bytes(8), bytes(5), bytes(6)]),
        st.just(Probe().encoder.encode(REQUEST)),
        st.just(Probe().encoder.encode(RESPONSE)),
    ),
)


def read_all(probe: Probe) -> None:
    """What was said is made of frames, and nothing follows a connection's end."""
    said = probe.said()
    broken = [event for event in probe.events if isinstance(event, ConnectionBroken)]
    assert len(broken) <= 1
    if broken:
        assert said[-1].type == 7
        assert probe.events[-1] is broken[0]
    for frame in said:
        assert frame.type != 0 or frame.stream_id % 2 == 1


@settings(max_examples=200)
@given(role=st.sampled_from(Role), frames=st.lists(FRAMES, max_size=30), opened=st.booleans())
def test_any_frames_in_any_order(role, frames, opened):
    probe = Probe(role)
    if opened:
        probe.open(1)
        probe.open(3)
        probe.connection.send_data(1, bytes(100_000))
    for frame in frames:
        probe.give(frame)
    read_all(probe)


@settings(max_examples=200)
@given(role=st.sampled_from(Role), data=st.binary(max_size=400), introduced=st.booleans())
def test_any_bytes(role, data, introduced):
    connection = Connection(role, Limits())
    if introduced:
        connection.receive((PREFACE if role is Role.SERVER else b"") + raw(SETTINGS))
    connection.receive(data)
    connection.receive(data)


@settings(max_examples=200)
@given(data=st.data())
def test_a_good_conversation_with_a_byte_changed(data):
    probe = Probe()
    good = bytearray(
        probe.head(1) + raw(0, 0, 1, b"a" * 50) + raw(8, 0, 1, bytes((0, 0, 1, 0))) + probe.head(3, end=True) + raw(0, 1, 1, b"b")
    )
    position = data.draw(st.integers(0, len(good) - 1))
    good[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    probe.give(bytes(good[:cut]))
    probe.give(bytes(good[cut:]))
    read_all(probe)


@settings(max_examples=200)
@given(block=st.binary(max_size=300))
def test_any_header_block(block):
    probe = Probe()
    probe.give(raw(1, 0x5, 1, block))
    read_all(probe)

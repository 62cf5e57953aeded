"""Conversations with h2, an implementation that is not ours, in both roles: whatever is said and however it is cut, both ends
know the same of every stream."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.http2.connection import Connection
from extproc.http2.errors import Code
from extproc.http2.events import ConnectionBroken, DataReceived, HeadReceived, StreamBroken, TrailersReceived
from extproc.http2.limits import Limits
from extproc.http2.streams import Role

REQUEST = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")]
RESPONSE = [(":status", "200"), ("content-type", "text/event-stream")]


@dataclass
class Heard:
    """What one end knows of one stream."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    trailers: list[tuple[str, str]] | None = None
    ended: bool = False
    reset: int | None = None


class Pair:
    """One of our connections and one of h2's, and a wire between them that cuts as it likes."""

    def __init__(self, role: Role, *, initial_window: int) -> None:
        self.role = role
        self.ours = Connection(role, Limits(stream_window=65_535, connection_window=65_535))
        self.theirs = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=role is Role.SERVER, header_encoding="latin-1")
        )
        self.theirs.local_settings = h2.settings.Settings(
            client=role is Role.SERVER,
            initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: initial_window, 0x3: 1000},
        )
        self.theirs.initiate_connection()
        self.we_heard: dict[int, Heard] = defaultdict(Heard)
        self.they_heard: dict[int, Heard] = defaultdict(Heard)
        self.streams: list[int] = []

    def exchange(self, cuts: Iterable[int] = ()) -> None:
        """Carry what waits in both directions until nothing does."""
        sizes = iter(cuts)
        while True:
            to_us, to_them = self.theirs.data_to_send(), self.ours.take_output()
            if not to_us and not to_them:
                return
            for piece in cut(to_them, sizes):
                self._they_hear(self.theirs.receive_data(piece))
            for piece in cut(to_us, sizes):
                self._we_hear(piece)

    def _we_hear(self, piece: bytes) -> None:
        for event in self.ours.receive(piece):
            assert not isinstance(event, ConnectionBroken), event
            match event:
                case HeadReceived(stream_id, fields, ended):
                    self.we_heard[stream_id].fields = list(fields)
                    self.we_heard[stream_id].ended |= ended
                case DataReceived(stream_id, data, ended):
                    self.we_heard[stream_id].body += data
                    self.we_heard[stream_id].ended |= ended
                    self.ours.acknowledge(stream_id, len(data))
                case TrailersReceived(stream_id, fields):
                    self.we_heard[stream_id].trailers = list(fields)
                    self.we_heard[stream_id].ended = True
                case StreamBroken(stream_id, code):
                    self.we_heard[stream_id].reset = code

    def _they_hear(self, events: Iterable[h2.events.Event]) -> None:
        for event in events:
            match event:
                case h2.events.RequestReceived() | h2.events.ResponseReceived():
                    self.they_heard[event.stream_id].fields = [(name, value) for name, value in event.headers]
                case h2.events.DataReceived():
                    self.they_heard[event.stream_id].body += event.data
                    if event.flow_controlled_length:
                        self.theirs.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.TrailersReceived():
                    self.they_heard[event.stream_id].trailers = [(name, value) for name, value in event.headers]
                case h2.events.StreamEnded():
                    self.they_heard[event.stream_id].ended = True
                case h2.events.StreamReset():
                    self.they_heard[event.stream_id].reset = event.error_code
                case h2.events.ConnectionTerminated():
                    raise AssertionError(event)


def bodies_of(sizes: Iterable[int]) -> list[bytes]:
    """Pieces that can be told apart."""
    return [bytes((number,)) * size for number, size in enumerate(sizes, 1)]


def cut(data: bytes, sizes: Iterable[int]) -> Iterable[bytes]:
    position = 0
    for size in sizes:
        if position >= len(data):
            return
        yield data[position : position + size]
        position += size
    if position < len(data):
        yield data[position:]


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=20).map(lambda name: f"x-{name}")
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=60)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
SIZES = st.lists(st.one_of(st.integers(0, 300), st.integers(1, 60_000)), max_size=4)
CUTS = st.lists(st.integers(1, 70_000), max_size=40)
WINDOWS = st.sampled_from([0, 2_000, 65_535, 1_000_000])


@settings(max_examples=60)
@given(heads=st.lists(st.tuples(FIELDS, SIZES), min_size=1, max_size=4), window=WINDOWS, cuts=CUTS)
def test_what_our_client_sends_arrives_at_h2(heads, window, cuts):
    pair = Pair(Role.CLIENT, initial_window=window)
    pair.exchange()
    expected = {}
    for fields, sizes in heads:
        bodies = bodies_of(sizes)
        stream_id = pair.ours.open_stream([*REQUEST, *fields], end_stream=not bodies)
        for index, body in enumerate(bodies):
            pair.ours.send_data(stream_id, body, end_stream=index == len(bodies) - 1)
        expected[stream_id] = Heard(fields=[*REQUEST, *fields], body=b"".join(bodies), ended=True)
    pair.exchange(cuts)
    if window == 0:
        pair.theirs.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
        pair.exchange()
    assert dict(pair.they_heard) == expected


@settings(max_examples=60)
@given(answers=st.lists(st.tuples(FIELDS, SIZES), min_size=1, max_size=4), window=WINDOWS, cuts=CUTS)
def test_what_our_server_answers_arrives_at_h2(answers, window, cuts):
    pair = Pair(Role.SERVER, initial_window=window)
    expected, streams = {}, []
    for fields, _ in answers:
        streams.append(pair.theirs.get_next_available_stream_id())
        pair.theirs.send_headers(streams[-1], [*REQUEST, *fields], end_stream=True)
    pair.exchange(cuts)
    for stream_id, (fields, sizes) in zip(streams, answers, strict=True):
        bodies = bodies_of(sizes)
        assert pair.we_heard[stream_id] == Heard(fields=[*REQUEST, *fields], ended=True)
        pair.ours.send_fields(stream_id, [*RESPONSE, *fields], end_stream=False)
        for body in bodies:
            pair.ours.send_data(stream_id, body)
        pair.ours.send_data(stream_id, b"end", end_stream=True)
        expected[stream_id] = Heard(fields=[*RESPONSE, *fields], body=b"".join(bodies) + b"end", ended=True)
    pair.exchange(cuts)
    if window == 0:
        pair.theirs.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
        pair.exchange()
    assert dict(pair.they_heard) == expected
    assert pair.ours.streams == 0


@settings(max_examples=60)
@given(
    requests=st.lists(st.tuples(FIELDS, st.lists(st.integers(0, 3_000), max_size=6), FIELDS), min_size=1, max_size=4),
    cuts=CUTS,
)
def test_what_h2_sends_arrives_at_our_server(requests, cuts):
    pair = Pair(Role.SERVER, initial_window=65_535)
    pair.exchange()
    expected = {}
    for fields, sizes, trailers in requests:
        bodies = bodies_of(sizes)
        stream_id = pair.theirs.get_next_available_stream_id()
        pair.theirs.send_headers(stream_id, [*REQUEST, *fields])
        for body in bodies:
            pair.theirs.send_data(stream_id, body, pad_length=len(body) % 50 or None)
        pair.theirs.send_headers(stream_id, [("x-last", "1"), *trailers], end_stream=True)
        expected[stream_id] = Heard(
            fields=[*REQUEST, *fields], body=b"".join(bodies), trailers=[("x-last", "1"), *trailers], ended=True
        )
        pair.exchange(cuts)
    assert dict(pair.we_heard) == expected


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "we send", "they send", "we end", "they end", "we reset", "they reset", "ping", "room"]),
        st.integers(0, 5),
        st.integers(1, 30_000),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(role=st.sampled_from(Role), steps=STEPS, cuts=CUTS)
def test_a_conversation_of_any_order_is_understood_by_both(role, steps, cuts):
    """Frames cross each other: nothing is carried until a few steps were taken."""
    pair = Pair(role, initial_window=20_000)
    pair.exchange()
    talk = Talk(pair)
    for number, (what, which, size) in enumerate(steps):
        talk.take(what, which, size)
        if number % 4 == 3:
            pair.exchange(cuts[number:])
    pair.exchange()
    talk.compare()


class Talk:
    """Keeps what each end has said, and says only what it may."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.we_said: dict[int, bytes] = {}
        self.they_said: dict[int, bytes] = {}
        self.we_ended: set[int] = set()
        self.they_ended: set[int] = set()
        self.reset: set[int] = set()

    def take(self, what: str, which: int, size: int) -> None:
        pair = self.pair
        if what == "open":
            self._open()
            return
        if what == "ping":
            pair.theirs.ping(size.to_bytes(8, "big"))
            return
        if not self.we_said:
            return
        stream_id = sorted(self.we_said)[which % len(self.we_said)]
        if stream_id in self.reset:
            return
        match what:
            case "we send" if stream_id not in self.we_ended:
                pair.ours.send_data(stream_id, bytes(size))
                self.we_said[stream_id] += bytes(size)
            case "we end" if stream_id not in self.we_ended:
                pair.ours.send_data(stream_id, b"", end_stream=True)
                self.we_ended.add(stream_id)
            case "they send" if stream_id not in self.they_ended:
                self._they_send(stream_id, size)
            case "they end" if stream_id not in self.they_ended:
                pair.theirs.end_stream(stream_id)
                self.they_ended.add(stream_id)
            case "room":
                pair.theirs.increment_flow_control_window(size)
            case "we reset" if not {stream_id} <= self.we_ended & self.they_ended:
                pair.ours.reset_stream(stream_id, Code.CANCEL)
                self.reset.add(stream_id)
            case "they reset" if not {stream_id} <= self.we_ended & self.they_ended:
                pair.theirs.reset_stream(stream_id, 8)
                self.reset.add(stream_id)

    def _open(self) -> None:
        """A stream whose both heads are exchanged, so that either end may say anything next."""
        pair = self.pair
        if pair.role is Role.CLIENT:
            stream_id = pair.ours.open_stream(REQUEST, end_stream=False)
            pair.exchange()
            pair.theirs.send_headers(stream_id, RESPONSE)
        else:
            stream_id = pair.theirs.get_next_available_stream_id()
            pair.theirs.send_headers(stream_id, REQUEST)
            pair.exchange()
            pair.ours.send_fields(stream_id, RESPONSE, end_stream=False)
        pair.exchange()
        self.we_said[stream_id] = self.they_said[stream_id] = b""

    def _they_send(self, stream_id: int, size: int) -> None:
        size = min(size, 16_384, self.pair.theirs.local_flow_control_window(stream_id))
        if size:
            self.pair.theirs.send_data(stream_id, bytes(size))
            self.they_said[stream_id] += bytes(size)

    def compare(self) -> None:
        for stream_id in self.we_said:
            we, they = self.pair.we_heard[stream_id], self.pair.they_heard[stream_id]
            if stream_id in self.reset:
                assert self.they_said[stream_id].startswith(we.body)
                assert self.we_said[stream_id].startswith(they.body)
            else:
                assert (we.body, we.ended, we.reset) == (self.they_said[stream_id], stream_id in self.they_ended, None)
                assert (they.body, they.ended, they.reset) == (self.we_said[stream_id], stream_id in self.we_ended, None)

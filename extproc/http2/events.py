"""What a connection tells its owner. Named tuples: several are made for every delta, and they cost a third of a dataclass."""

from typing import NamedTuple

from extproc.http2.fields import Fields


class HeadReceived(NamedTuple):
    """A request's head (on a server) or a response's final one (on a client). ``ended``: nothing follows."""

    stream_id: int
    fields: Fields
    ended: bool


class DataReceived(NamedTuple):
    """A piece of a body, to be acknowledged when it is used up. ``ended``: nothing follows."""

    stream_id: int
    data: bytes
    ended: bool


class TrailersReceived(NamedTuple):
    """Fields after the body; nothing follows."""

    stream_id: int
    fields: Fields


class StreamBroken(NamedTuple):
    """The stream is over before both its halves were. ``code`` REFUSED_STREAM: the peer has not looked at it."""

    stream_id: int
    code: int
    reason: str


class Drained(NamedTuple):
    """All that ``send_data`` had to keep back has been sent."""

    stream_id: int


class GoingAway(NamedTuple):
    """The peer takes no new streams; those that it had not looked at were reported as broken before."""

    code: int
    reason: str


class ConnectionBroken(NamedTuple):
    """The peer broke a rule: what is to be sent still says so, then the connection is to be closed."""

    code: int
    reason: str


Event = HeadReceived | DataReceived | TrailersReceived | StreamBroken | Drained | GoingAway | ConnectionBroken

"""JSON out of an event's data, as tolerant as the clients that read the same bytes."""

import json

import orjson


class NotJson(ValueError):  # noqa: N818  (a finding, not a mistake)
    """The data is no JSON text, by the most lenient reading."""


def decode_payload(data: bytes) -> object:
    """The JSON value in ``data``. Raises NotJson."""
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError:
        return _decode_leniently(data)
    return value


def _decode_leniently(data: bytes) -> object:
    """What orjson refuses and json.loads, which the SDKs use, takes: NaN, a lone surrogate (an emoji cut over two deltas).

    Broken UTF-8 is read with replacement characters: this side only classifies, the client gets the bytes as they came.
    """
    try:
        value: object = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise NotJson from None
    return value

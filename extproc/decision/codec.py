"""Frozen dataclasses as JSON objects and back: what a decision was made of, kept so that it can be made again (R18).

Understands what this room's facts are made of: numbers, texts, enums, None, bytes, tuples, mappings of texts, dataclasses, and
unions of dataclasses. A dataclass carries its name as ``"is"``, so a union needs no further mark.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

NAME: Final = "is"


def encode(value: object) -> Any:  # noqa: ANN401  (JSON)
    """A value as JSON. Raises TypeError for what is none of the kinds above."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return b64encode(value).decode()
        case tuple() | list() | frozenset():
            return [encode(item) for item in value]
        case Mapping():
            return {str(key): encode(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {NAME: type(value).__name__, **{field.name: encode(getattr(value, field.name)) for field in fields(value)}}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def decode(kind: Any, document: Any) -> Any:  # noqa: ANN401  (a type or a union of types; JSON; a value of that kind)
    """What ``encode`` made of a value of this kind. Raises ValueError where the document is no such thing."""
    try:
        return _decode(kind, document)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a {getattr(kind, '__name__', kind)}: {error!r}") from error


def _decode(kind: Any, document: Any) -> Any:  # noqa: ANN401  (types at run time)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _decode_union(get_args(kind), document)
    if origin is tuple:
        (item, _) = get_args(kind)
        return tuple(_decode(item, part) for part in document)
    if origin is not None:  # a mapping of plain values
        return dict(document)
    if isinstance(kind, type) and is_dataclass(kind):
        if document[NAME] != kind.__name__:
            raise ValueError(f"a {document[NAME]}, not a {kind.__name__}")
        hints = _hints(kind)
        return kind(**{name: _decode(hints[name], part) for name, part in document.items() if name != NAME})
    if kind is bytes:
        return b64decode(document)
    if kind is object or kind is Any:
        return document
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(document)
    if not isinstance(document, int | float if kind is float else kind):
        raise ValueError(f"{document!r} is no {kind.__name__}")
    return document


def _decode_union(members: tuple[Any, ...], document: Any) -> Any:  # noqa: ANN401  (types at run time)
    if document is None and type(None) in members:
        return None
    if isinstance(document, dict) and NAME in document:
        return _decode(next(member for member in members if getattr(member, "__name__", "") == document[NAME]), document)
    for member in members:
        if member is type(None):
            continue
        try:
            return _decode(member, document)
        except (ValueError, TypeError):
            continue
    raise ValueError(f"{document!r} is none of {members}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)

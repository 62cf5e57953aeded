"""Text into a plain tree: YAML 1.2 with its JSON schema, and nothing of YAML that could surprise.

Built from the parser's events, not by a YAML constructor: ``yes``, ``off`` and ``0123`` stay words, a date stays text,
``1_000`` is no number, tags and aliases (and with them expansion attacks) are refused, a key may come once. JSON is read by the
same rules, being a subset. A number must follow JSON's grammar; written with an exponent or ``.0`` it counts as an
integer where it is whole, since Helm prints 1048576 as ``1.048576e+06`` (CASES K8-01, K8-02). NaN and infinity don't exist here.
"""

import math
import re
from collections.abc import Iterator
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from extproc.routes.problems import PolicyError, Problem, child_path, shown

Tree = dict[str, "Tree"] | list["Tree"] | str | int | float | bool | None

TEXT_CHARACTERS_MAX: Final = 65_536
"""A document that names every key takes about 2,000; the limit bounds the time one annotation can cost."""
DEPTH_MAX: Final = 16
"""The deepest key of a policy lies four levels down."""

_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,300})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None, "~": None, "": None}
_SCANNER_ERRORS: Final = (YAMLError, ValueError, OverflowError)
"""The scanner answers an escape beyond Unicode, such as ``\\U99999999``, with Python's own errors."""
_EXACT_INTEGER_MAX: Final = 2**53
"""Up to here a float that is whole is the integer that was meant."""


def number_of(text: str) -> int | float | None:
    """The finite number that ``text`` writes in JSON's grammar (RFC 8259 section 6), whole ones as ``int``; else None."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if match.group(2) is None and match.group(3) is None:
        return int(text)
    number = float(text)
    return whole(number) if math.isfinite(number) else None


def whole(number: float) -> int | float:
    """``number``, as an ``int`` where it is a whole one that floats hold exactly."""
    return int(number) if number.is_integer() and abs(number) <= _EXACT_INTEGER_MAX else number


def read_tree(text: str) -> Tree:
    """The single document in ``text`` as dicts, lists, strings, numbers, booleans and None.

    Raises PolicyError with the path of what it refuses, or with line and column where the text is no YAML at all.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        raise PolicyError(
            Problem(path="", problem=f"{len(text)} characters of text", fix=f"keep it below {TEXT_CHARACTERS_MAX} characters")
        )
    try:
        return _document(YAML(typ="safe", pure=True).parse(text))
    except _SCANNER_ERRORS as error:
        raise PolicyError(_syntax_problem(error)) from error


def _syntax_problem(error: Exception) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    said = getattr(error, "problem", None) or str(error).partition("\n")[0]
    said = said.encode("ascii", "backslashreplace").decode()
    return Problem(path="", problem=f"not YAML or JSON{where}: {said}", fix="mend the text")


def _document(events: Iterator[Event]) -> Tree:
    tree: Tree = None
    documents = 0
    for event in events:
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise PolicyError(Problem(path="", problem="more than one document", fix="keep one, without further ---"))
            tree = _node(next(events), events, "", 1)
    return tree


def _node(event: Event, events: Iterator[Event], path: str, depth: int) -> Tree:
    if getattr(event, "anchor", None) is not None:
        raise PolicyError(Problem(path=path, problem="YAML anchors and aliases are not read", fix="write the value out"))
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise PolicyError(Problem(path=path, problem=f"the YAML tag {shown(tag)} is not read", fix="write the plain value"))
    if depth > DEPTH_MAX:
        raise PolicyError(Problem(path=path, problem="nested too deeply", fix="see docs/policy.md for the keys"))
    match event:
        case MappingStartEvent():
            return _mapping(events, path, depth)
        case SequenceStartEvent():
            return _sequence(events, path, depth)
        case _:
            return _scalar(event)


def _mapping(events: Iterator[Event], path: str, depth: int) -> dict[str, Tree]:
    mapping: dict[str, Tree] = {}
    while not isinstance(event := next(events), MappingEndEvent):
        if not isinstance(event, ScalarEvent):
            raise PolicyError(Problem(path=path, problem="a key that is no plain word", fix="see docs/policy.md for the keys"))
        key_path = child_path(path, event.value)
        if event.value in mapping:
            raise PolicyError(Problem(path=key_path, problem="given twice", fix="keep one of the two"))
        mapping[event.value] = _node(next(events), events, key_path, depth + 1)
    return mapping


def _sequence(events: Iterator[Event], path: str, depth: int) -> list[Tree]:
    items: list[Tree] = []
    while not isinstance(event := next(events), SequenceEndEvent):
        items.append(_node(event, events, f"{path}[{len(items)}]", depth + 1))
    return items


def _scalar(event: Event) -> Tree:
    assert isinstance(event, ScalarEvent)
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    number = number_of(text)
    return text if number is None else number

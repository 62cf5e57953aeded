"""The policy document's schema (proto/policy.schema.json), its leaves, and what it says about a tree.

The schema is the one truth about keys, types, bounds, defaults and what to do instead (``x-fix``); code, documentation and
annotations are derived from it.
"""

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from extproc import data_file
from extproc.routes.problems import Problem, child_path, shown

PROBLEMS_MAX: Final = 50
"""Most problems reported of one text: more help nobody, and a hostile text may hold thousands."""

SCHEMA: Final[Mapping[str, Any]] = json.loads(data_file("proto/policy.schema.json").read_text())
_VALIDATOR: Final = Draft202012Validator(SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One key that holds a value."""

    path: str
    """Dotted, such as ``lease.ttl_ms``."""
    kind: str
    """JSON Schema's word: ``string``, ``integer``, ``number``, ``boolean`` or ``array`` (of strings)."""
    default: Any
    rules: Mapping[str, Any]
    """The schema's own node: description, bounds, choices, fixes."""


def _leaves(node: Mapping[str, Any], path: str = "") -> Iterator[Leaf]:
    for name, child in node["properties"].items():
        if child["type"] == "object":
            yield from _leaves(child, child_path(path, name))
        else:
            yield Leaf(path=child_path(path, name), kind=child["type"], default=child["default"], rules=child)


LEAVES: Final[Mapping[str, Leaf]] = {leaf.path: leaf for leaf in _leaves(SCHEMA)}


def problems_of(tree: object) -> tuple[Problem, ...]:
    """What the schema refuses in ``tree``, one problem for each path, at most PROBLEMS_MAX."""
    problems: dict[str, Problem] = {}
    for error in _VALIDATOR.iter_errors(tree):
        for problem in _problems_of_error(error):
            problems.setdefault(problem.path, problem)
            if len(problems) == PROBLEMS_MAX:
                return tuple(problems.values())
    return tuple(problems.values())


def _problems_of_error(error: ValidationError) -> Iterator[Problem]:
    rules, keyword, instance = error.schema, str(error.validator), error.instance
    assert isinstance(rules, Mapping)
    path = ""
    for step in error.absolute_path:
        path = f"{path}[{step}]" if isinstance(step, int) else child_path(path, step)
    if keyword == "additionalProperties":
        assert isinstance(instance, dict)
        yield from _unknown_keys(list(instance), list(rules["properties"]), path)
        return
    problem, general_fix = _WORDS[keyword](instance, rules[keyword])
    yield Problem(path=path, problem=problem, fix=rules.get("x-fix", {}).get(keyword, general_fix))


def _unknown_keys(keys: list[str], known: list[str], path: str) -> Iterator[Problem]:
    for key in keys:
        if key not in known:
            yield Problem(path=child_path(path, key), problem="unknown key", fix=known_words(key, known))


def known_words(word: str, known: Sequence[str]) -> str:
    """What to do about an unknown word: the known one that it resembles, else all that are known."""
    close = difflib.get_close_matches(word[:64], known, n=1)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "integer": ("a whole number", "write a whole number in digits, without a unit"),
    "number": ("a number", "write a number in digits, without a unit"),
    "boolean": ("true or false", "write true or false"),
    "string": ("a word", "write a word"),
    "array": ("a list", "write a list"),
    "object": ("a mapping of keys", "write its keys below it, or leave it out"),
}


def _type_words(instance: object, kind: str) -> tuple[str, str]:
    name, fix = _KINDS[kind]
    return f"{shown(instance)} is not {name}", fix


def _enum_words(instance: object, choices: list[str]) -> tuple[str, str]:
    return f"{shown(instance)} is not known", f"write one of {', '.join(choices)}"


def _minimum_words(instance: object, minimum: float) -> tuple[str, str]:
    return f"{shown(instance)} is below {minimum}", f"set at least {minimum}"


def _maximum_words(instance: object, maximum: float) -> tuple[str, str]:
    return f"{shown(instance)} is above {maximum}", f"set at most {maximum}"


def _refused_words(instance: object, _rule: object) -> tuple[str, str]:
    return f"{shown(instance)} is refused", "leave the key out"


_WORDS: Final[Mapping[str, Callable[[object, Any], tuple[str, str]]]] = {
    "type": _type_words,
    "enum": _enum_words,
    "minimum": _minimum_words,
    "maximum": _maximum_words,
    "const": _refused_words,
    "not": _refused_words,
    "minItems": _refused_words,
    "uniqueItems": _refused_words,
}
"""Problem and general fix for each rule that the schema uses; a test compares it with the schema."""

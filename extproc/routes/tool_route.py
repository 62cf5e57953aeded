"""What the operator says about a tool's route: one line of JSON in ext_proc's initial metadata, ``x-deltafence-tool``."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

from extproc.decision.tool_call import ToolRoute
from extproc.routes.problems import PolicyError, Problem, child_path, shown

ROUTES_CACHED_MAX: Final = 256

_KINDS: Final[Mapping[str, tuple[type, str]]] = {
    "name": (str, "give lower-case letters, digits and dashes"),
    "require_key": (bool, "give true or false"),
    "caller_header": (str, "give a header's name in lower case"),
    "wait_ms": (int, "give whole milliseconds, at most deadline_ms"),
    "deadline_ms": (int, "give whole milliseconds, at least wait_ms"),
    "answer_bytes_max": (int, "give a number of bytes above 0"),
    "keep_ms": (int, "give whole milliseconds"),
    "status_path": (str, "give a path with {key} in it"),
}
_PATTERNS: Final = {
    "name": re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"),
    "caller_header": re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+"),
    "status_path": re.compile(r"/[\x21-\x7e]*\{key\}[\x21-\x7e]*"),
}


@lru_cache(maxsize=ROUTES_CACHED_MAX)
def read_tool_route(text: str) -> ToolRoute:
    """The route that a metadata value describes. Raises PolicyError with every problem found."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(Problem(path="", problem=f"not JSON ({error})", fix="give one JSON object")) from error
    if not isinstance(document, dict):
        raise PolicyError(Problem(path="", problem=f"{shown(document)} is not an object", fix="give one JSON object"))
    problems = [problem for key, value in document.items() if (problem := _problem(key, value)) is not None]
    if "name" not in document:
        problems.append(Problem(path="name", problem="missing", fix=_KINDS["name"][1]))
    if problems:
        raise PolicyError(*problems)
    return _checked(document)


def encode_tool_route(route: ToolRoute) -> str:
    """The metadata value for a route: one line of ASCII. Envoy reads ``%`` in it as a command; JSON has another spelling."""
    document = {key: value for key, value in asdict(route).items() if value is not None}
    return json.dumps(document, separators=(",", ":")).replace("%", "\\u0025")


def _problem(key: str, value: object) -> Problem | None:
    if key not in _KINDS:
        return Problem(path=child_path("", key), problem="unknown key", fix=f"known keys: {', '.join(_KINDS)}")
    kind, fix = _KINDS[key]
    right = type(value) is kind and (kind is not int or (isinstance(value, int) and value >= 0))
    if right and isinstance(value, str):
        right = _PATTERNS[key].fullmatch(value) is not None
    return None if right else Problem(path=key, problem=f"{shown(value)} is not possible", fix=fix)


def _checked(document: dict[str, Any]) -> ToolRoute:
    defaults = asdict(ToolRoute(name="any"))
    values = {**defaults, **document}
    if values["wait_ms"] > values["deadline_ms"]:
        raise PolicyError(Problem(path="wait_ms", problem="longer than deadline_ms", fix=_KINDS["wait_ms"][1]))
    if values["answer_bytes_max"] == 0:
        raise PolicyError(Problem(path="answer_bytes_max", problem="0 bytes", fix=_KINDS["answer_bytes_max"][1]))
    return ToolRoute(**values)

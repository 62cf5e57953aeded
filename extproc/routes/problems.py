"""What is wrong with a policy, said so that its author can mend it: where, what, and what to do instead."""

import json
from dataclasses import dataclass
from typing import Final

SHOWN_CHARACTERS_MAX: Final = 60
"""Longest excerpt of a refused value: enough to recognise it, too little to flood a log line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One refused value or key."""

    path: str
    """Dotted path in the document (``lease.ttl_ms``), an annotation's whole name, or empty for the text as such."""
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path or 'document'}: {self.problem}; {self.fix}"


class PolicyError(Exception):
    """A policy text that was refused as a whole; ``problems`` holds every reason, in the order of the text."""

    def __init__(self, *problems: Problem) -> None:
        assert problems
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems: Final = problems


def shown(value: object) -> str:
    """A refused value in one short ASCII line, as JSON where it has such a form."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "..."


def child_path(path: str, key: str) -> str:
    """``path.key``; a key that is no plain word is shown quoted, so that a path stays one readable line."""
    word = key if key.isascii() and key.replace("_", "a").replace("-", "a").isalnum() else shown(key)
    return f"{path}.{word}" if path else word

"""One request on disk: what was sent, what was seen from outside, what the processor decided from, and the judgement (R18)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from extproc.decision.codec import decode, encode
from extproc.faults.evidence import Evidence
from extproc.faults.invariants import Violation

FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Everything that it takes to look at a request again, or to run it again."""

    format: int
    seed: int
    point: str
    """The fault point's key."""
    path: str
    body: bytes
    model_revision: str | None
    evidence: Evidence
    decisions: tuple[Mapping[str, Any], ...]
    """The lines of the processor's decision log, in order."""
    violations: tuple[Violation, ...]
    gateway: str
    """The version of the gateway that was under test."""


def write_trace(trace: Trace, directory: Path) -> Path:
    """Write it under the request's name; the file."""
    file = directory / f"{trace.evidence.name}.json"
    file.write_text(json.dumps(encode(trace), indent=1))
    return file


def read_trace(file: Path) -> Trace:
    """Raises OSError, and ValueError for a file that is no trace of this format."""
    document = json.loads(file.read_text())
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{file} is no trace of format {FORMAT}")
    trace: Trace = decode(Trace, document)
    return trace


def read_decisions(file: Path, offset: int) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """The whole lines of a decision log behind ``offset``, by request id, and where they end."""
    if not file.exists():
        return {}, offset
    with file.open("rb") as log:
        log.seek(offset)
        data = log.read()
    data = data[: data.rfind(b"\n") + 1]
    decisions: dict[str, list[dict[str, Any]]] = {}
    for text in data.splitlines():
        line = json.loads(text)
        decisions.setdefault(line["request_id"], []).append(line)
    return decisions, offset + len(data)

"""Every decision of a process as a line of JSON: what went into the table and what came out (R18).

For the fault suite and for whoever hunts a rare fault: ``deltafence faults replay`` feeds the events into the same table again.
Not for every day, since each line is written through to the file before its effects are carried out; off unless asked for.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, TextIO

from extproc.decision.codec import encode
from extproc.decision.effects import Effect
from extproc.decision.events import Event, Placed
from extproc.decision.policy import Policy


class DecisionLog(Protocol):
    """Told of each decision before its effects are carried out. Must neither wait nor raise."""

    def decided(self, request_id: str, policy: Policy, event: Event, effects: Sequence[Effect]) -> None:
        """The table has answered ``effects`` to ``event``."""

    def close(self) -> None:
        """Nothing more will come."""


class NoDecisionLog:
    """Nobody wants to know."""

    def decided(self, request_id: str, policy: Policy, event: Event, effects: Sequence[Effect]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


NO_DECISION_LOG: Final = NoDecisionLog()


class DecisionFile:
    """Appends to a file. A request's first line carries its policy."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file: TextIO = path.open("a", buffering=1, encoding="utf-8")  # a line survives the process's death

    def decided(self, request_id: str, policy: Policy, event: Event, effects: Sequence[Effect]) -> None:
        """Write a line."""
        line: dict[str, object] = {"request_id": request_id}
        if isinstance(event, Placed):  # every request's first
            line["policy"] = encode(policy)
        self._file.write(json.dumps(line | {"event": encode(event), "effects": encode(tuple(effects))}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

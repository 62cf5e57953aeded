"""What the server's own command line says of its model (R8): the gateway can't see it, and `/v1/models` shows only a part."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from extproc.decision.identity import read_flags

log = logging.getLogger("deltafence.guard")

SUBCOMMAND: Final = "serve"
OLD_ENTRY_POINT: Final = "api_server.py"
"""``python -m vllm.entrypoints.openai.api_server``, whose flags are the same."""


def facts_told(command: Sequence[str]) -> dict[str, str | int | list[str]]:
    """Facts by name from ``sys.argv``; empty where this is no vLLM server. Nothing else of the command line is told: keys are
    on it."""
    try:
        known = {name: value for name, value in asdict(read_flags(_flags_of(command))).items() if value is not None}
    except ValueError as error:
        log.warning("the command line tells nothing of the model: %s", error)
        return {}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}


def _flags_of(command: Sequence[str]) -> Sequence[str]:
    if SUBCOMMAND in command[1:2]:
        return command[2:]
    return command[1:] if command and command[0].endswith(OLD_ENTRY_POINT) else ()

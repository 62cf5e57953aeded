"""Values as commands print them."""

from datetime import UTC, datetime


def clock_text(at_ms: int) -> str:
    """Milliseconds since the epoch as a UTC time that sorts."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def count_text(number: int, noun: str) -> str:
    """``1 attempt``, ``2 attempts``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""Label values that come from outside, bounded: a client that invents model names must not grow anybody's memory."""

from typing import Final

from extproc.contract.text import bounded

VALUES_MAX: Final = 64
VALUE_LENGTH_MAX: Final = 120
OTHER: Final = "other"
"""Stands for every value beyond the first ``VALUES_MAX``."""


class BoundedValues:
    """The first so many distinct values pass as they are, cut to a length; all later ones become ``other``."""

    def __init__(self, values_max: int = VALUES_MAX) -> None:
        self._values_max = values_max
        self._known: set[str] = set()

    def of(self, value: str) -> str:
        """The label for a value."""
        short = bounded(value, VALUE_LENGTH_MAX)
        if short in self._known:
            return short
        if len(self._known) >= self._values_max:
            return OTHER
        self._known.add(short)
        return short

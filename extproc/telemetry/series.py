"""One instrument's series, kept here until somebody collects.

A measurement costs the SDK about ten microseconds, most of it to clean, copy and hash the same labels again, and a request makes
a dozen. So what only adds up, or only has a last value, adds up here, and the SDK's asynchronous instruments read it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation

from extproc.telemetry.instruments import Instrument

Labels = Mapping[str, str]

SERIES_MAX: Final = 2000
"""Of one instrument, as many as the SDK itself would keep. All beyond them share one more."""
OVERFLOW: Final = "otel.metric.overflow"
"""The label of that one (OpenTelemetry metrics SDK specification, "Overflow attribute")."""

_Key = frozenset[tuple[str, str | bool]]
_OVERFLOW_KEY: Final[_Key] = frozenset({(OVERFLOW, True)})


class Series:
    """Changed on the event loop only; read from exporters' threads."""

    def __init__(self, instrument: Instrument) -> None:
        self._instrument = instrument
        self._values: dict[_Key, float] = {}

    def add(self, labels: Labels, number: float) -> None:
        """Add to the series with these labels."""
        key = self._key(labels)
        self._values[key] = self._values.get(key, 0) + number

    def set(self, labels: Labels, value: float) -> None:
        """Give the series with these labels a value."""
        self._values[self._key(labels)] = value

    def observe(self, _: CallbackOptions) -> Iterable[Observation]:
        """All series as they are now."""
        # A copy is made in one step, so that a series may begin meanwhile.
        return [Observation(value, _attributes(key)) for key, value in self._values.copy().items()]

    def _key(self, labels: Labels) -> _Key:
        """Labels in any order, and words of an enumeration or the same plain text, are one series."""
        key: _Key = frozenset(labels.items())
        if key in self._values:
            return key
        check(self._instrument, labels)
        return key if len(self._values) < SERIES_MAX else _OVERFLOW_KEY


def check(instrument: Instrument, labels: Labels) -> None:
    """A label that the table does not know is a mistake of ours."""
    assert labels.keys() <= set(instrument.labels), f"{instrument.name} with labels {sorted(labels)}"


def _attributes(key: _Key) -> dict[str, str | bool]:
    """As plain text: the SDK would keep a word of an enumeration apart from it, and Prometheus can't tell the two."""
    return {name: str(value) if isinstance(value, str) else value for name, value in key}

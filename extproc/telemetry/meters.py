"""Instruments as the SDK's: one method for each way of counting, so that no module spells a metric's name or unit again."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider

from extproc import __version__
from extproc.telemetry.instruments import INSTRUMENTS, Instrument, Kind

SCOPE: Final = "deltafence"

Labels = Mapping[str, str | bool | int | float]


class Meters:
    """All instruments of one processor."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE, __version__)
        self._meter: Final[Meter] = meter
        self._counters = {
            each: meter.create_counter(each.name, unit=each.unit, description=each.meaning) for each in _of(Kind.COUNTER)
        }
        self._up_down = {
            each: meter.create_up_down_counter(each.name, unit=each.unit, description=each.meaning)
            for each in _of(Kind.UP_DOWN_COUNTER)
        }
        self._gauges = {
            each: meter.create_gauge(each.name, unit=each.unit, description=each.meaning)
            for each in _of(Kind.GAUGE)
            if each.labels
        }
        self._histograms = {
            each: meter.create_histogram(
                each.name, unit=each.unit, description=each.meaning, explicit_bucket_boundaries_advisory=each.buckets
            )
            for each in _of(Kind.HISTOGRAM)
        }

    def count(self, instrument: Instrument, labels: Labels, number: int = 1) -> None:
        """Add to a counter."""
        self._counters[instrument].add(number, _checked(instrument, labels))

    def begin(self, instrument: Instrument, labels: Labels) -> None:
        """Let a counter's series exist at 0, so that Prometheus sees its first step as a step (it takes no absence for 0)."""
        self.count(instrument, labels, 0)

    def move(self, instrument: Instrument, labels: Labels, by: int) -> None:
        """Add to an up-down counter, or take from it."""
        self._up_down[instrument].add(by, _checked(instrument, labels))

    def set(self, instrument: Instrument, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._gauges[instrument].set(value, _checked(instrument, labels))

    def record(self, instrument: Instrument, labels: Labels, value: float) -> None:
        """Put a value into a histogram."""
        self._histograms[instrument].record(value, _checked(instrument, labels))

    def watch(self, instrument: Instrument, read: Callable[[], float]) -> None:
        """Read a gauge without labels whenever somebody collects. ``read`` may be called from an exporter's thread."""
        assert not instrument.labels, f"{instrument.name} has labels"

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return (Observation(read()),)

        self._meter.create_observable_gauge(
            instrument.name, callbacks=[observe], unit=instrument.unit, description=instrument.meaning
        )


def _of(kind: Kind) -> Iterable[Instrument]:
    return (instrument for instrument in INSTRUMENTS if instrument.kind is kind)


def _checked(instrument: Instrument, labels: Labels) -> dict[str, str | bool | int | float]:
    """A label that the table does not know is a mistake of ours.

    The SDK tells a word of an enumeration from the same plain text, and would keep two series that Prometheus can't tell apart.
    """
    assert labels.keys() <= set(instrument.labels), f"{instrument.name} with labels {sorted(labels)}"
    return {name: str(value) if isinstance(value, str) else value for name, value in labels.items()}

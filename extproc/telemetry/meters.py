"""Instruments as the SDK's: one method for each way of counting, so that no module spells a metric's name or unit again."""

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider

from extproc import __version__
from extproc.telemetry.instruments import INSTRUMENTS, Instrument, Kind
from extproc.telemetry.series import Labels, Series, check

SCOPE: Final = "deltafence"


class Meters:
    """All instruments of one processor. Only histograms are measured one by one; the others are read when somebody collects."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE, __version__)
        self._meter: Final[Meter] = meter
        self._counters = _kept(Kind.COUNTER, meter.create_observable_counter)
        self._up_down = _kept(Kind.UP_DOWN_COUNTER, meter.create_observable_up_down_counter)
        self._gauges = _kept(Kind.GAUGE, meter.create_observable_gauge)
        self._histograms = {
            each: meter.create_histogram(
                each.name, unit=each.unit, description=each.meaning, explicit_bucket_boundaries_advisory=each.buckets
            )
            for each in _of(Kind.HISTOGRAM)
        }

    def count(self, instrument: Instrument, labels: Labels, number: int = 1) -> None:
        """Add to a counter."""
        self._counters[instrument].add(labels, number)

    def begin(self, instrument: Instrument, labels: Labels) -> None:
        """Let a counter's series exist at 0, so that Prometheus sees its first step as a step (it takes no absence for 0)."""
        self.count(instrument, labels, 0)

    def move(self, instrument: Instrument, labels: Labels, by: int) -> None:
        """Add to an up-down counter, or take from it."""
        self._up_down[instrument].add(labels, by)

    def set(self, instrument: Instrument, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._gauges[instrument].set(labels, value)

    def record(self, instrument: Instrument, labels: Labels, value: float) -> None:
        """Put a value into a histogram."""
        check(instrument, labels)
        self._histograms[instrument].record(value, {name: str(label) for name, label in labels.items()})

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


def _kept(kind: Kind, create: Callable[..., object]) -> dict[Instrument, Series]:
    """Series of every instrument of a kind, except the gauges that are watched. ``create`` is the meter's for that kind."""
    kept = {each: Series(each) for each in _of(kind) if each.labels or kind is not Kind.GAUGE}
    for each, series in kept.items():
        create(each.name, callbacks=[series.observe], unit=each.unit, description=each.meaning)
    return kept

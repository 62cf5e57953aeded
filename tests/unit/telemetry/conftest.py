"""The witness with its subscribers, and what a scrape shows."""

from collections.abc import Callable, Iterable

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from extproc.telemetry.meters import Meters


class Scrape:
    """A meter provider and what Prometheus reads from it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.provider = MeterProvider(
            metric_readers=[PrometheusMetricReader(scope_info_enabled=False, registry=self.registry)], shutdown_on_exit=False
        )
        self.meters = Meters(self.provider)

    def value(self, name: str, **labels: str) -> float | None:
        """A sample's value; None where there is none."""
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def scrape() -> Iterable[Scrape]:
    scrape = Scrape()
    yield scrape
    scrape.provider.shutdown()


@pytest.fixture
def told() -> Callable[..., None]:
    """``told(observer, events)``: in order."""

    def tell(observer: object, events: Iterable[object]) -> None:
        for event in events:
            observer.saw(event)

    return tell

"""Where telemetry goes: a Prometheus registry always, OTLP where OpenTelemetry's own environment variables name a receiver.

The exporters read their endpoints, headers, timeouts and certificates from ``OTEL_EXPORTER_OTLP_*`` themselves; so do the SDK's
sampler (``OTEL_TRACES_SAMPLER``) and resource (``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``).
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, ProcessCollector

from extproc import __version__
from extproc.telemetry.traces import RequestIds

LOGGER: Final = logging.getLogger("deltafence.telemetry")

FLUSH_S_MAX: Final = 3.0
"""How long a stop waits for a receiver that does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports:
    """One process's ways out. ``tracer_provider`` is None where no receiver is named: then no span is made at all."""

    registry: CollectorRegistry
    meter_provider: MeterProvider
    tracer_provider: TracerProvider | None
    ids: RequestIds

    def close(self) -> None:
        """Send what is left. Blocks for up to ``FLUSH_S_MAX``; call it from a thread.

        The exporters' own time limits are those of a request, retries included, so they are left behind when ours is over.
        """
        providers = [provider for provider in (self.tracer_provider, self.meter_provider) if provider is not None]
        endings = [threading.Thread(target=provider.shutdown, daemon=True) for provider in providers]
        for ending in endings:
            ending.start()
        given_up_at = time.monotonic() + FLUSH_S_MAX
        for ending in endings:
            ending.join(max(0.0, given_up_at - time.monotonic()))
        if any(ending.is_alive() for ending in endings):
            LOGGER.warning("the receiver of traces and metrics did not answer in time; what was left is lost")


def open_exports(environment: Mapping[str, str], instance_id: str) -> Exports:
    """Exports as an environment asks for. ``instance_id`` tells this process's series from its siblings'."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    resource = _resource(environment, instance_id)
    readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False, registry=registry)]
    if asks_for(environment, "METRICS"):
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    ids = RequestIds()
    tracer_provider = None
    if asks_for(environment, "TRACES"):
        tracer_provider = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
        tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meter_provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    return Exports(registry=registry, meter_provider=meter_provider, tracer_provider=tracer_provider, ids=ids)


def asks_for(environment: Mapping[str, str], signal: str) -> bool:
    """Whether a receiver for a signal (``TRACES``, ``METRICS``) is named.

    OpenTelemetry's default would be localhost:4318 for everybody; here, silence means none.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get(f"OTEL_{signal}_EXPORTER", "")
    if exporter not in ("", "otlp"):
        if exporter != "none":
            LOGGER.warning("OTEL_%s_EXPORTER=%s is not supported; use otlp or none", signal, exporter)
        return False
    endpoint = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not exporter and not endpoint:
        return False
    protocol = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", "http/protobuf"):
        LOGGER.warning("OTLP over %s is not supported; http/protobuf is used, usually on port 4318", protocol)
    return True


def _resource(environment: Mapping[str, str], instance_id: str) -> Resource:
    attributes = {"service.version": __version__, "service.instance.id": instance_id}
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in environment.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes["service.name"] = "deltafence"
    return Resource.create(attributes)

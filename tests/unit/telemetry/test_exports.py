"""OTLP goes to a real receiver, and only where the environment names one."""

import logging
import socket

import pytest

from extproc.telemetry import exports
from extproc.telemetry.assembly import Telemetry
from extproc.telemetry.exports import asks_for, open_exports
from tests.telemetry.otlp_receiver import otlp_receiver
from tests.unit.telemetry.events import REPEATED

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


async def test_receiver_gets_traces_and_metrics_with_the_resource_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_receiver() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=gateway-0")
        telemetry = Telemetry(instance_id="p1")
        for event in REPEATED:
            telemetry.observer.saw(event)
        await telemetry.close()

        assert {span.name for span in receiver.spans} == {"chat llama", "attempt 1", "attempt 2"}
        assert {"deltafence.requests", "gen_ai.server.time_to_first_token"} <= receiver.metric_names
        expected = {"service.name": "deltafence", "service.instance.id": "p1", "k8s.pod.name": "gateway-0"}
        for path in receiver.messages:
            assert expected.items() <= receiver.resource(path).items()
        assert {headers["x-tenant"] for headers in receiver.headers} == {"blue"}


async def test_receiver_that_never_answers_holds_up_no_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
        monkeypatch.setattr(exports, "FLUSH_S_MAX", 0.1)
        telemetry = Telemetry(instance_id="p1")
        for event in REPEATED:
            telemetry.observer.saw(event)
        await telemetry.close()
        assert "did not answer in time" in caplog.text


@pytest.mark.parametrize(
    ("environment", "traces"),
    [
        ({}, False),
        ({ENDPOINT: "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({ENDPOINT: "http://collector:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_environment_decides_whether_anything_is_sent(environment: dict[str, str], traces: bool) -> None:
    assert asks_for(environment, "TRACES") is traces


@pytest.mark.parametrize(
    "environment",
    [{"OTEL_TRACES_EXPORTER": "zipkin"}, {ENDPOINT: "http://collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}],
)
def test_unsupported_wish_is_said_in_the_log(environment: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    asks_for(environment, "TRACES")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_without_a_receiver_there_is_a_scrape_and_no_span() -> None:
    opened = open_exports({}, "p1")
    assert opened.tracer_provider is None
    assert opened.registry.get_sample_value("process_start_time_seconds") > 0
    opened.close()


async def test_what_was_put_off_is_told_before_the_end() -> None:
    telemetry = Telemetry(instance_id="p1", environment={}, later=lambda tell: None)
    for event in REPEATED:
        telemetry.observer.saw(event)
    assert list(telemetry.recent.ended) == []
    await telemetry.close()
    assert [story.facts.request_id for story in telemetry.recent.ended] == [REPEATED[0].request_id]

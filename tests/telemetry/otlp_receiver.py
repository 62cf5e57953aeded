"""A receiver of OTLP over HTTP with protobuf bodies, as a collector has one, on loopback."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

FORMS: dict[str, tuple[Any, Any]] = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
}


class OtlpReceiver:
    """What was received, by path. ``wait_for`` blocks until a condition on it holds."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.messages: dict[str, list[Any]] = {path: [] for path in FORMS}
        self.headers: list[dict[str, str]] = []
        self.changed = threading.Condition()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for message in self.messages["/v1/traces"]
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metric_names(self) -> set[str]:
        return {
            metric.name
            for message in self.messages["/v1/metrics"]
            for resource in message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def resource(self, path: str) -> dict[str, str]:
        message = self.messages[path][0]
        resources = message.resource_spans if path == "/v1/traces" else message.resource_metrics
        return {entry.key: entry.value.string_value for entry in resources[0].resource.attributes}


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.headers["content-type"] == "application/x-protobuf"
            request, response = FORMS[self.path]
            with receiver.changed:
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.messages[self.path].append(request.FromString(body))
                receiver.changed.notify_all()
            payload = response().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = OtlpReceiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

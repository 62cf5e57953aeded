"""A client's trace goes through the real Envoy and the processor to the replica, and its spans to a receiver of OTLP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.telemetry.otlp_receiver import otlp_receiver
from tests.telemetry.running import running

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@contextmanager
def replica_that_keeps_headers() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Its URL, and the headers of every generation that reached it."""
    kept: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            self.answer({"object": "list", "data": []} if self.path == "/v1/models" else {})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path.startswith("/v1/"):
                kept.append({name.lower(): value for name, value in self.headers.items()})
            self.answer(ANSWER, 200 if self.path.startswith("/v1/") else 404)

        def answer(self, document: object, status: int = 200) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_clients_trace_reaches_the_replica_and_the_receiver(tmp_path) -> None:
    with replica_that_keeps_headers() as (replica, kept), otlp_receiver() as receiver:
        async with running("--replica", replica, directory=tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as gateway:
            answer = await gateway.chat(stream=False, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=1")
            await gateway.stop()
        spans = {span.name: span for span in receiver.spans}

    assert answer.status_code == 200
    request, attempt = spans["chat sim-model"], spans["attempt 1"]
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert request.parent_span_id.hex() == PARENT
    assert attempt.parent_span_id == request.span_id
    assert attempt.kind == Span.SPAN_KIND_CLIENT
    (headers,) = kept
    assert headers["traceparent"].split("-")[1:3] == [TRACE, attempt.span_id.hex()]
    assert headers["tracestate"] == "vendor=1"
    attributes = {entry.key: entry.value for entry in request.attributes}
    assert attributes["deltafence.request_id"].string_value == answer.headers["x-deltafence-request-id"]
    assert "deltafence.requests" in receiver.metric_names


async def test_without_a_receiver_the_clients_trace_headers_pass_unchanged(tmp_path) -> None:
    with replica_that_keeps_headers() as (replica, kept):
        async with running("--replica", replica, directory=tmp_path) as gateway:
            await gateway.chat(stream=False, traceparent=f"00-{TRACE}-{PARENT}-01")
    assert [headers["traceparent"] for headers in kept] == [f"00-{TRACE}-{PARENT}-01"]


async def test_log_lines_as_json_tell_one_request_from_its_admission_to_its_end(tmp_path) -> None:
    with replica_that_keeps_headers() as (replica, _):
        async with running("--replica", replica, "--log-format", "json", directory=tmp_path) as gateway:
            answer = await gateway.chat(stream=False, traceparent=f"00-{TRACE}-{PARENT}-01")
            await gateway.stop()
    lines = [json.loads(line) for line in gateway.log.read_text().splitlines() if line.startswith("{")]
    ours = [line for line in lines if line.get("request_id") == answer.headers["x-deltafence-request-id"]]
    assert [line["message"] for line in ours] == ["admitted", "attempt_started", "response_started", "first_delta_sent", "ended"]
    assert {line["trace_id"] for line in ours} == {TRACE}
    assert "hello" not in gateway.log.read_text()

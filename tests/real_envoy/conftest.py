"""A real Envoy on free ports, with replicas and processors that do what a test says. Everything ends with its test."""

import asyncio
import json
import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.children import Child, start_child
from extproc.app.envoy_config import EnvoySettings, render
from extproc.app.envoy_process import EnvoyAdmin, envoy_command, find_envoy
from extproc.processor import protobuf
from tests.real_envoy.apart import Starter, StartGateway


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Awaitable[Any]]:
    return eventually


async def eventually(condition: Callable[[], Awaitable[Any]], what: str, limit_s: float = 30.0) -> Any:
    """Poll until a condition gives something true, and return that; fail with its last error or value."""
    last: object = None
    deadline = asyncio.get_running_loop().time() + limit_s
    while asyncio.get_running_loop().time() < deadline:
        try:
            if last := await condition():
                return last
        except (OSError, httpx.HTTPError, AssertionError) as error:
            last = error
        await asyncio.sleep(0.02)
    raise AssertionError(f"never happened: {what} (last: {last!r})")


class EchoReplica:
    """An HTTP server that answers with what reached it, under its own name; each answer has ``status`` and ``headers``."""

    def __init__(self, name: str, *, tls: ssl.SSLContext | None = None) -> None:
        replica = self
        self.name = name
        self.status = 200
        self.headers: dict[str, str] = {}
        self.requests: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one segment: two would wait for each other's acknowledgement

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                replica.requests.append(f"{self.command} {self.path}")
                echo = {
                    "replica": replica.name,
                    "method": self.command,
                    "path": self.path,
                    "headers": {key.lower(): value for key, value in self.headers.items()},
                    "body": body.decode(),
                }
                payload = json.dumps(echo).encode() if replica.status >= 200 else b""
                form = {"content-type": "application/json", "content-length": str(len(payload))} if payload else {}
                self.send_response(replica.status)
                for key, value in (form | replica.headers).items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_POST = do_DELETE = answer  # noqa: N815  (http.server calls them so)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.address = ReplicaAddress(scheme="http" if tls is None else "https", host="127.0.0.1", port=self.port)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where connections are refused for as long as the test runs: it is bound, and nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture
def echo_replica() -> Iterator[Callable[..., EchoReplica]]:
    replicas: list[EchoReplica] = []

    def start(name: str = "r1", **fields: Any) -> EchoReplica:
        replicas.append(EchoReplica(name, **fields))
        return replicas[-1]

    yield start
    for replica in replicas:
        replica.stop()


@pytest.fixture
async def sim_replica() -> AsyncIterator[Callable[..., Awaitable[ReplicaAddress]]]:
    """``await sim_replica(*options)``: a replica look-alike as a process of its own."""
    async with AsyncExitStack() as stack:

        async def start(*options: str, name: str = "r1") -> ReplicaAddress:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "extproc.sim", "--port", "0", "--name", name, "--die-with-parent", *options),
                stdout=asyncio.subprocess.PIPE,
            )
            stack.push_async_callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
            assert line.startswith("listening "), line
            return ReplicaAddress.parse(f"http://{line.split()[1]}")

        yield start


class ScriptedProcessor:
    """An ext_proc server that does what the request's ``x-stub`` header says, or ``default``:

    ``echo``: answers 200 with the headers, attributes and gRPC metadata that it was given; ``abort``: ends with a gRPC error;
    ``let-go``: ends with OK and no answer; ``wait``: answers nothing until the client is gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = 0
        self.waiting = 0
        self.server = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
        self.server.add_generic_rpc_handlers((protobuf.method_handlers(self.process),))
        self.server.add_insecure_port(f"unix:{path}")

    async def process(self, messages: AsyncIterator[Any], call: Any) -> AsyncIterator[Any]:
        self.seen += 1
        first = await anext(aiter(messages))
        headers = {entry.key: entry.raw_value.decode() for entry in first.request_headers.headers.headers}
        match headers.get("x-stub", "echo"):
            case "echo":
                seen = {
                    "headers": headers,
                    "metadata": {key: value for key, value in call.invocation_metadata() if isinstance(value, str)},
                    "attributes": {name: dict(struct.items()) for name, struct in first.attributes.items()},
                }
                yield protobuf.ProcessingResponse(
                    immediate_response=protobuf.ImmediateResponse(
                        status=protobuf.http_status(200), body=json.dumps(seen).encode(), details="echo"
                    )
                )
            case "abort":
                await call.abort(grpc.StatusCode.INTERNAL, "scripted")
            case "wait":
                self.waiting += 1
                await asyncio.Event().wait()
            case "let-go":
                return


@dataclass
class RunningEnvoy:
    settings: EnvoySettings
    child: Child
    admin: EnvoyAdmin
    port: int
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"


@pytest.fixture
def run_directory() -> Iterator[Path]:
    """Short enough for socket paths, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="deltafence-test-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
async def start_processor(run_directory: Path) -> AsyncIterator[Callable[..., Awaitable[ScriptedProcessor]]]:
    started: list[ScriptedProcessor] = []

    async def start(name: str = "p1") -> ScriptedProcessor:
        processor = ScriptedProcessor(run_directory / f"{name}.sock")
        await processor.server.start()
        started.append(processor)
        return processor

    yield start
    for processor in started:
        await processor.server.stop(None)


@pytest.fixture
async def start_envoy(run_directory: Path) -> AsyncIterator[Callable[..., Awaitable[RunningEnvoy]]]:
    """``await start_envoy(replicas, ...)``: an Envoy with these fields of EnvoySettings, once it is live."""
    async with AsyncExitStack() as stack:

        async def start(replicas: list[EchoReplica | ReplicaAddress], **fields: Any) -> RunningEnvoy:
            fields.setdefault("processor_sockets", (run_directory / "p1.sock",))
            settings = EnvoySettings(
                **fields,
                listen=(Address(host="127.0.0.1", port=0),),
                replicas=tuple(replica.address if isinstance(replica, EchoReplica) else replica for replica in replicas),
                egress_socket=run_directory / "egress.sock",
                admin_socket=run_directory / "admin.sock",
            )
            config = run_directory / "envoy.yaml"
            config.write_text(render(settings))
            child = await start_child("Envoy", envoy_command(find_envoy(None), config, concurrency=1))
            stack.push_async_callback(child.kill)
            admin = await stack.enter_async_context(EnvoyAdmin.at(settings.admin_socket))

            async def is_live() -> bool:
                assert not child.has_ended, "Envoy ended"
                return await admin.is_live()

            await eventually(is_live, "Envoy is live")
            return RunningEnvoy(settings=settings, child=child, admin=admin, port=await admin.front_port())

        yield start


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30) as client:
        yield client


@pytest.fixture
async def start_gateway(start_envoy: Any, run_directory: Path) -> AsyncIterator[StartGateway]:
    """Envoy and real processors, started apart: see apart.py."""
    async with AsyncExitStack() as stack:
        yield Starter(stack=stack, directory=run_directory, start_envoy=start_envoy, eventually=eventually).start

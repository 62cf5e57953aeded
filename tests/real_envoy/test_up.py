"""`deltafence up` as its user meets it: a process with options, one line on stdout, signals and an exit status."""

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import stat
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from extproc.app.addresses import ReplicaAddress
from extproc.app.demonstration.stage import may_repeat, until_every_replica
from extproc.sim.process import start_replica
from extproc.sim.settings import Settings

TLS_DATA = Path(__file__).parents[1] / "data" / "tls"
REAL = (sys.executable, "-m", "extproc.app", "up")
STUB = (sys.executable, str(Path(__file__).with_name("up_with_stub.py")))
MARK = "DELTAFENCE_TEST_MARK"
CHAT = {"model": "sim-model", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Up:
    """One run. Its descendants are found by a mark in their environment, whoever their parent is by now."""

    mark: str
    log: Path
    process: asyncio.subprocess.Process
    url: str = field(default="", init=False)

    async def ready(self) -> str:
        line = (await self.process.stdout.readline()).decode()
        assert re.fullmatch(r"ready http://\S+\n", line), f"{line!r}\n{self.log.read_text()}"
        self.url = line.split()[1]
        return self.url

    async def ended(self) -> int:
        """The exit status; nothing else came on stdout, and no process of this run is left."""
        rest = await self.process.stdout.read()
        status = await self.process.wait()
        assert rest == b""
        assert self.survivors() == {}
        return status

    def survivors(self) -> dict[int, str]:
        found = {}
        for directory in Path("/proc").iterdir():
            if directory.name.isdigit():
                try:
                    marked = f"{MARK}={self.mark}".encode() in (directory / "environ").read_bytes().split(b"\0")
                    state = (directory / "stat").read_text().rpartition(")")[2].split()[0]
                    name = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except (OSError, IndexError):
                    continue
                if marked and state not in "ZX":
                    found[int(directory.name)] = name
        return found

    def pid_of(self, word: str) -> int:
        (pid,) = [pid for pid, command in self.survivors().items() if word in command]
        return pid

    @property
    def admin(self) -> str:
        found = re.search(r"status and journal at (http://\S+)", self.log.read_text())
        assert found is not None
        return found[1]


@pytest.fixture
async def start_up(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Up]]]:
    """``await start_up(*arguments)``; ports are free ones unless the arguments say otherwise (the last counts).

    ``command=STUB`` puts a processor behind it whose streams end when the test says so.
    """
    runs: list[Up] = []

    async def start(*arguments: object, command: tuple[str, ...] = REAL, **environment: str) -> Up:
        mark = uuid.uuid4().hex
        log = tmp_path / f"{mark}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(*command, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
                *map(str, arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **environment, MARK: mark},
            )
        runs.append(Up(mark=mark, log=log, process=process))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.returncode is None:
            run.process.kill()
            await run.process.wait()


@pytest.fixture
def replica(echo_replica):
    return echo_replica()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


async def gone(run: Up) -> bool:
    return run.survivors() == {}


async def logged(run: Up, words: str) -> bool:
    return words in run.log.read_text()


# ---- ready


async def test_one_line_on_stdout_once_a_request_succeeds(start_up, replica, client) -> None:
    run = await start_up("--replica", replica.address)
    url = await run.ready()
    assert (await client.get(f"{url}/v1/models")).json()["path"] == "/v1/models"
    assert (await client.get(f"{run.admin}/readyz")).status_code == 200
    run.process.send_signal(signal.SIGTERM)
    assert await run.ended() == 0


async def test_a_generation_passes_through_every_part(start_up, sim_replica, client) -> None:
    run = await start_up("--replica", await sim_replica("--tokens", "4"))
    url = await run.ready()
    answer = await client.post(f"{url}/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.headers["x-deltafence-attempts"]) == (200, "1")
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_it_is_not_ready_before_a_replica_answers(start_up, closed_port, echo_replica, eventually) -> None:
    run = await start_up("--replica", f"http://127.0.0.1:{closed_port}")
    await eventually(lambda: said(run, "still waiting for an answer to GET /v1/models"), "it says what it waits for")
    run.process.send_signal(signal.SIGTERM)
    assert await run.ended() == 1
    assert "stopped before it was ready" in run.log.read_text()


async def test_one_replica_of_two_is_enough(start_up, replica, closed_port, client) -> None:
    run = await start_up("--replica", replica.address, "--replica", f"http://127.0.0.1:{closed_port}")
    url = await run.ready()
    answers = [await client.get(f"{url}/v1/models") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 6


async def test_a_replica_that_wants_a_key_counts_as_ready(start_up, replica) -> None:
    replica.status = 401
    run = await start_up("--replica", replica.address)
    await run.ready()


async def test_ipv6_addresses_and_a_replica_by_name(start_up, replica, client) -> None:
    run = await start_up("--listen", "[::1]:0", "--admin", "[::1]:0", "--replica", f"http://localhost:{replica.port}")
    url = await run.ready()
    assert url.startswith("http://[::1]:")
    assert (await client.get(f"{url}/v1/models")).json()["headers"]["host"] == "localhost"
    assert (await client.get(f"{run.admin}/readyz")).status_code == 200


async def test_several_processors_share_the_requests(start_up, replica, client, tmp_path) -> None:
    journal = ("--journal", tmp_path / "journal.db")
    run = await start_up("--processors", 2, *journal, "--replica", replica.address, command=STUB)
    url = await run.ready()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=CHAT) as answer:
        assert await anext(answer.aiter_lines()) == "data: one"
        commands = [command for command in run.survivors().values() if "stub_processor" in command]
        admins = [int(re.search(r"--admin \S+:(\d+)", command)[1]) for command in commands]
        assert sorted(admins) == [min(admins), min(admins) + 1]


async def test_the_processor_is_told_what_it_needs(start_up, replica, client, tmp_path) -> None:
    token, policy = tmp_path / "token", tmp_path / "policy.yaml"
    token.write_text("secret")
    policy.write_text("")
    options = ("--policy", policy, "--token-file", token, "--journal", tmp_path / "journal.db")
    run = await start_up("--replica", replica.address, *options, command=STUB)
    await run.ready()
    words = (await client.get(f"{run.admin}/")).text.split()
    told = dict(zip(words[::2], words[1::2], strict=True))
    assert told["--replica"] == str(replica.address)
    assert (told["--policy"], told["--token-file"], told["--journal"]) == (str(policy), str(token), str(tmp_path / "journal.db"))
    assert told["--admin"] == run.admin.removeprefix("http://")


async def test_the_access_log_holds_both_listeners_lines(start_up, sim_replica, client, tmp_path) -> None:
    run = await start_up("--replica", await sim_replica("--tokens", "4"), "--access-log", tmp_path / "access.log")
    url = await run.ready()
    request_id = (await client.post(f"{url}/v1/chat/completions", json=CHAT)).headers["x-deltafence-request-id"]
    run.process.send_signal(signal.SIGTERM)
    assert await run.ended() == 0
    lines = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    ours = [line for line in lines if line["request_id"] == request_id]
    front, egress = sorted(ours, key=lambda line: line["listener"], reverse=True)
    assert (front["outcome"], front["attempts"]) == ("completed", 1)
    assert egress["attempt_id"].startswith("att_")
    assert egress["destination"] == egress["replica"]


# ---- refused


async def test_a_taken_port_is_named_with_its_option(start_up, replica, taken_port) -> None:
    for option in ("--listen", "--admin"):
        run = await start_up("--replica", replica.address, option, f"127.0.0.1:{taken_port}")
        assert await run.ended() == 1
        assert run.log.read_text() == (
            f"Error: {option} 127.0.0.1:{taken_port}: cannot listen on port {taken_port}: Address already in use\n"
        )


async def test_a_second_gateway_on_the_same_port_is_refused(start_up, replica) -> None:
    first = await start_up("--replica", replica.address)
    address = (await first.ready()).removeprefix("http://")
    second = await start_up("--replica", replica.address, "--listen", address)
    assert await second.ended() == 1
    assert f"--listen {address}" in second.log.read_text()


async def test_an_invalid_policy_is_refused_with_its_path(start_up, replica, tmp_path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("lease: {ttl_ms: never}\n")
    run = await start_up("--replica", replica.address, "--policy", policy)
    assert await run.ended() == 1
    assert re.match(rf"Error: --policy {policy}: lease\.ttl_ms: ", run.log.read_text())


async def test_a_database_named_by_the_environment_is_not_on_the_processors_command_line(start_up, replica, tmp_path) -> None:
    run = await start_up("--replica", replica.address, DELTAFENCE_JOURNAL=str(tmp_path / "secret.db"))
    await run.ready()
    assert (tmp_path / "secret.db").exists()
    assert not any("secret.db" in command for command in run.survivors().values())


@asynccontextmanager
async def behind_tls(address: ReplicaAddress) -> AsyncIterator[str]:
    """An https URL of a replica that speaks HTTP only, with a certificate of the tests' own authority."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(address.host, address.port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(TLS_DATA / "server.pem", TLS_DATA / "server.key")
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_private_authority_is_believed_by_envoy_and_by_whoever_looks_at_the_replica(start_up, client) -> None:
    async with start_replica(Settings()) as replica, behind_tls(ReplicaAddress.parse(replica.url)) as url:
        run = await start_up("--replica", url, "--replica-ca", TLS_DATA / "ca.pem")
        front = await run.ready()
        await until_every_replica(may_repeat, run.admin)
        body = {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}]}
        assert (await client.post(f"{front}/v1/chat/completions", json=body)).status_code == 200
        run.process.send_signal(signal.SIGTERM)
        assert await run.ended() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processors", "2"], "Error: --processors 2 needs --journal"),
        (["--tool", "mail=http://127.0.0.1:1"], "Error: --tool needs --journal"),
        (["--tool", "mail"], "Invalid value for '--tool': 'mail' is not NAME=URL"),
        (["--journal", "mysql://host/name"], "Error: the journal's address 'mysql://host/name' is neither"),
        (
            ["--journal", "/nonexistent/journal.db"],
            "Error: --journal: SQLite: unable to open database file /nonexistent/journal.db",
        ),
        (["--envoy", "/nonexistent/envoy"], "Error: --envoy /nonexistent/envoy is not a file that can be executed"),
        (["--envoy", "/bin/false"], "Error: Envoy ended with status 1"),
        (["--listen", "127.0.0.1:http"], "Invalid value for '--listen'"),
        (["--replica", "http://127.0.0.1:1/v1"], "Invalid value for '--replica'"),
        (
            ["--replica", "http://127.0.0.1:1", "--replica", "http://127.0.0.1:1"],
            "one of them is given twice",
        ),
        (["--drain-limit", "30"], "Invalid value for '--drain-limit'"),
        # A file that may be opened and not read, whoever asks.
        (["--policy", "/proc/self/mem"], "/mem can't be read: [Errno "),
        (["--replica-ca", "/nonexistent"], "Invalid value for '--replica-ca'"),
    ],
)
async def test_a_wrong_option_is_named(start_up, replica, arguments, message) -> None:
    run = await start_up("--replica", replica.address, *arguments)
    assert await run.ended() != 0
    assert message in run.log.read_text()


# ---- the end


async def test_ctrl_c_ends_it_too(start_up, replica) -> None:
    run = await start_up("--replica", replica.address)
    await run.ready()
    run.process.send_signal(signal.SIGINT)
    assert await run.ended() == 0


async def test_a_running_stream_ends_in_its_own_time(start_up, replica, client, eventually) -> None:
    run = await start_up("--replica", replica.address, command=STUB)
    url = await run.ready()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=CHAT) as answer:
        events = answer.aiter_lines()
        assert await anext(events) == "data: one"
        run.process.send_signal(signal.SIGTERM)
        await eventually(lambda: refused(url), "new clients are turned away")
        async with httpx.AsyncClient(timeout=30) as other:
            await other.post(f"{run.admin}/finish")
        assert [line async for line in events if line] == ["data: two"]
    assert await run.ended() == 0


async def test_a_stream_of_a_real_replica_outlives_sigterm(start_up, sim_replica, client) -> None:
    run = await start_up("--replica", await sim_replica("--tokens", "30", "--token-interval-ms", "20"))
    url = await run.ready()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=CHAT) as answer:
        events = answer.aiter_lines()
        await anext(events)
        run.process.send_signal(signal.SIGTERM)
        assert [line async for line in events if line][-1] == "data: [DONE]"
    assert await run.ended() == 0


async def test_a_stream_past_the_drain_limit_is_ended_by_the_processor(start_up, sim_replica, client) -> None:
    endless = await sim_replica("--tokens", "100000", "--token-interval-ms", "20")
    run = await start_up("--replica", endless, "--drain-limit", "200ms")
    url = await run.ready()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=CHAT) as answer:
        events = answer.aiter_lines()
        lines = [await anext(events)]
        run.process.send_signal(signal.SIGTERM)
        lines += [line async for line in events if line]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "upstream_decode_interrupted", lines
    assert await run.ended() == 0
    assert "1 requests still run after 0.2 s" in run.log.read_text()


async def test_a_second_signal_stops_at_once(start_up, replica, client, eventually) -> None:
    run = await start_up("--replica", replica.address, command=STUB)
    url = await run.ready()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=CHAT) as answer:
        assert await anext(answer.aiter_lines()) == "data: one"
        run.process.send_signal(signal.SIGTERM)
        await eventually(lambda: refused(url), "new clients are turned away")
        run.process.send_signal(signal.SIGTERM)
        assert await run.ended() == 1
    assert "stopped at once by a second signal" in run.log.read_text()


async def test_a_second_signal_stops_at_once_before_it_is_ready_too(start_up, closed_port, eventually) -> None:
    run = await start_up("--replica", f"http://127.0.0.1:{closed_port}")
    await eventually(lambda: logged(run, "journal at"), "its children run")
    os.kill(run.pid_of("extproc.app processor"), signal.SIGSTOP)  # so that the children's end takes its whole grace
    run.process.send_signal(signal.SIGTERM)
    await eventually(lambda: logged(run, "ENVOY_SIGTERM"), "the children are asked to end")
    with suppress(ProcessLookupError):  # its grace was over
        run.process.send_signal(signal.SIGTERM)
    assert await run.ended() == 1
    assert "Traceback" not in run.log.read_text()


async def test_an_envoy_that_stands_still_is_stopped_all_the_same(start_up, replica) -> None:
    run = await start_up("--replica", replica.address, "--drain-limit", "1s")
    await run.ready()
    os.kill(run.pid_of("envoy.yaml"), signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    assert await run.ended() == 0
    text = run.log.read_text()
    assert "Envoy does not answer" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(("child", "name"), [("envoy.yaml", "Envoy"), ("extproc.app processor", "processor 1")])
async def test_a_childs_death_ends_it_and_is_named(start_up, replica, child, name) -> None:
    run = await start_up("--replica", replica.address)
    await run.ready()
    os.kill(run.pid_of(child), signal.SIGKILL)
    assert await run.ended() == 1
    assert f"Error: {name} was ended by SIGKILL" in run.log.read_text()


@pytest.mark.parametrize("when", ["ready", "starting"])
async def test_its_own_sigkill_leaves_no_child(start_up, replica, closed_port, when, eventually) -> None:
    run = await start_up("--replica", replica.address if when == "ready" else f"http://127.0.0.1:{closed_port}")
    if when == "ready":
        await run.ready()
    await eventually(lambda: count(run, 3), "it has both its children")
    run.process.kill()
    await run.process.wait()
    await eventually(lambda: gone(run), "no child is left")


async def test_its_directory_is_private_and_goes_with_it(start_up, replica, run_directory) -> None:
    run = await start_up("--replica", replica.address, XDG_RUNTIME_DIR=str(run_directory))
    await run.ready()
    (directory,) = os.scandir(run_directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    modes = {entry.name: entry.stat().st_mode for entry in os.scandir(directory.path)}
    assert modes["egress.sock"] == modes["envoy-admin.sock"] == stat.S_IFSOCK | 0o600
    run.process.send_signal(signal.SIGTERM)
    assert await run.ended() == 0
    assert os.listdir(run_directory) == []


async def said(run: Up, words: str) -> bool:
    return words in run.log.read_text()


async def count(run: Up, processes: int) -> bool:
    return len(run.survivors()) == processes


async def refused(url: str) -> bool:
    try:
        async with httpx.AsyncClient(timeout=30) as other:
            await other.get(f"{url}/v1/models")
    except (httpx.NetworkError, httpx.RemoteProtocolError):
        return True  # refused, or reset where the listener closed between the kernel's accept and Envoy's
    return False

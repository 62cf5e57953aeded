"""The probe as a process, on the standard library alone."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.worker import probe
from extproc.worker.probe import default_settings, keep_watching, main, parse_arguments, parse_listen, read_settings
from tests.unit.scripted_replica import fetch, idle_replica

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def probe_process(*options: str, **variables: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, object]]]:
    """``-S`` leaves site-packages out, so what runs here runs in a model's image."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-S",
        "-m",
        "extproc.worker.probe",
        *options,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )
    try:
        assert process.stderr is not None
        yield process, json.loads(await process.stderr.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_it_runs_without_any_package_and_stops_when_told():
    async with (
        idle_replica().serving() as replica,
        probe_process("--target", replica.url, "--listen", "127.0.0.1:0", VLLM_API_KEY="secret") as (process, listening),
    ):
        assert (listening["event"], listening["target"]) == ("listening", f"127.0.0.1:{replica.port}")
        port = int(str(listening["addresses"][0]).rpartition(":")[2])
        await replica.until_asked("/metrics")
        assert (await fetch(port, "/livez"))[0] == 200
        assert json.loads((await fetch(port, "/verdict"))[1])["verdict"] in ("starting", "idle")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_it_serves_every_interface_where_only_a_port_is_given():
    async with probe_process("--listen", ":0") as (_, listening):
        assert any(str(address).startswith("0.0.0.0:") for address in listening["addresses"])


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 1
    assert "can't listen on" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--target", "ftp://x"],
        ["--listen", "9091"],
        ["--interval", "10s", "--hung-after", "5s"],
        ["--interval", "0s"],
        ["--restarts-per-hour", "-1"],
        ["--ca-file", "/no/such/file"],
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_starts(options: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(options) == 2
    assert capsys.readouterr().err.startswith("deltafence probe: ")


@pytest.mark.parametrize(
    "options", [["--interval", "5"], ["--interval", "nan"], ["--load-time", "1.5s"], ["--hung-after", "-1s"], ["--nonsense"]]
)
def test_numbers_that_are_none_are_refused_by_the_parser(options: list[str]):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(options)
    assert stop.value.code == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":9091", (None, 9091)),
        ("127.0.0.1:9091", ("127.0.0.1", 9091)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:1", ("localhost", 1)),
    ],
)
def test_where_to_listen_is_read(text: str, expected: tuple[str | None, int]):
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "9091", "a:", "a:b", ":70000", "::1:9091", "a:²"])
def test_other_addresses_are_refused(text: str):
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
        parse_listen(text)


def test_the_defaults_of_the_options_are_the_defaults():
    assert read_settings(parse_arguments([])) == default_settings()


def test_durations_carry_their_unit():
    settings = read_settings(parse_arguments(["--interval", "2500ms", "--hung-after", "1m", "--restarts-per-hour", "0"]))
    assert (settings.health.interval_ms, settings.health.hung_after_ms) == (2_500, 60_000)
    assert settings.liveness.restarts_per_hour_max == 0


async def test_a_fault_of_the_watch_is_noted_and_it_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "RESTART_WATCH_AFTER_S", 0)
    notes: list[tuple[str, dict[str, object]]] = []
    again = asyncio.Event()

    async def run() -> None:
        if notes:
            again.set()
            await asyncio.Event().wait()
        raise LookupError("of our own")

    watching = asyncio.create_task(keep_watching(run, lambda word, facts: notes.append((word, facts))))
    await again.wait()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert notes == [("watch_failed", {"error": "LookupError: of our own"})]

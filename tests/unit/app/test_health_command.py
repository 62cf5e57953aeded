"""``deltafence health`` as a process, against scripted servers."""

import asyncio
import json
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from extproc.app.health_command import STATUS, plain
from extproc.decision.verdicts import Verdict
from tests.unit.scripted_replica import ScriptedReplica, idle_replica, metrics

QUICK = ("--interval", "100ms", "--hung-after", "300ms")
PATIENT = """
from functools import partial
from extproc.app import cli, health_command
health_command.HealthMonitor = partial(health_command.HealthMonitor, read_timeout_ms=60_000)
cli.main()
"""
"""The program, but for how long it waits for a page: the scripted servers are of the tests' process, which may be held up."""


async def start(*arguments: str, **how: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        # A shell starts its background jobs, the tests among them, with SIGINT ignored, and children inherit that.
        *("env", "--default-signal=INT", sys.executable, "-c", PATIENT),
        "health",
        *arguments,
        **({"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE} | how),
    )


async def run(*arguments: str) -> tuple[int | None, str]:
    process = await start(*arguments)
    output, errors = await process.communicate()
    return process.returncode, output.decode() or errors.decode()


async def test_an_idle_replica_is_a_line_of_plain_text_and_status_0():
    async with idle_replica().serving() as replica:
        status, text = await run(*QUICK, replica.url)
        assert status == 0
        header, line = text.splitlines()
        assert header.split() == ["replica", "verdict", "for", "evidence"]
        assert line.startswith(f"{replica.url}  idle")
        assert "\x1b" not in text
        assert replica.asked.count("POST /v1/completions") == 1


async def test_a_busy_replica_is_read_twice_and_asked_nothing():
    replica = idle_replica()
    replica.serve(metrics(running=2, steps=0))
    async with replica.serving():
        looking = asyncio.create_task(run("--interval", "1s", replica.url))
        await replica.until_asked("/metrics")
        replica.serve(metrics(running=2, steps=107))
        status, text = await looking
    assert status == 0
    assert "2 running; 107 steps in" in text
    assert replica.asked == ["GET /metrics", "GET /metrics"]


async def test_the_worst_verdict_is_the_status_and_the_json_has_the_evidence():
    hung, idle = idle_replica(), idle_replica()
    hung.serve(metrics(running=1))
    async with hung.serving(), idle.serving():
        status, text = await run(*QUICK, "--json", hung.url, idle.url, hung.url)
    assert status == 4
    first, second = json.loads(text)
    assert (first["url"], first["verdict"], first["cause"]) == (hung.url, "hung", "engine_stands_still")
    assert second["verdict"] == "idle"
    assert len(first["readings"]) == 2


async def test_a_dead_backend_is_4_and_a_server_without_metrics_is_3():
    without = ScriptedReplica()
    async with without.serving():
        status, text = await run(*QUICK, without.url)
        assert (status, "unknown" in text, "answered 404" in text) == (3, True, True)
    status, text = await run(*QUICK, without.url)
    assert (status, "dead" in text, "connection refused" in text) == (4, True, True)


async def test_a_proxy_is_asked_for_its_models_only():
    async with idle_replica().serving() as replica:
        status, text = await run(*QUICK, "--proxy", replica.url)
        assert (status, "reachable" in text) == (0, True)
        assert set(replica.asked) == {"GET /v1/models"}


@pytest.mark.parametrize("as_json", [False, True])
async def test_watching_tells_each_change_in_a_line_until_it_is_interrupted(as_json: bool):
    async with idle_replica().serving() as replica:
        process = await start(*QUICK, "--watch", *(["--json"] if as_json else []), replica.url)
        assert process.stdout is not None
        seen = []
        for page in (metrics(), metrics(running=1), metrics(running=1, steps=900)):
            replica.serve(page)
            line = (await process.stdout.readline()).decode()
            seen.append(json.loads(line)["verdict"] if as_json else line.split("\t")[1])
        assert seen == ["idle", "busy", "suspect"]
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode in (0, 3, 4)


async def test_a_terminal_gets_colours():
    async with idle_replica().serving() as replica:
        ours, theirs = pty.openpty()
        process = await start(*QUICK, replica.url, stdout=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "200"})
        os.close(theirs)
        assert await process.wait() == 0
        os.set_blocking(ours, False)
        text = os.read(ours, 1 << 20).decode()
        os.close(ours)
        assert "\x1b[32midle" in text


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["--interval", "10s", "--hung-after", "1s", "http://127.0.0.1:1"]])
async def test_wrong_usage_is_2(arguments: list[str]):
    assert (await run(*arguments))[0] == 2


def test_every_verdict_has_a_status():
    assert set(STATUS) == set(Verdict)


def test_nothing_that_a_server_wrote_steers_the_terminal():
    assert plain("engine \x1b[2J\u202e1\n") == "engine ?[2J?1?"


async def test_the_command_is_listed_and_the_probe_needs_no_extra():
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-S",
        "-m",
        "extproc.app",
        "probe",
        "--help",
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    output, _ = await process.communicate()
    assert (process.returncode, b"--restarts-per-hour" in output) == (0, True)

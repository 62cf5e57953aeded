"""Starting what is measured, and stopping it again whatever happens."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

START_DEADLINE_S: Final = 30
STOP_DEADLINE_S: Final = 15


@contextmanager
def running(
    arguments: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None, *, has_pipe: bool = True
) -> Iterator[subprocess.Popen[str]]:
    """A child with stdout as a pipe and stderr in ``log``; ended with SIGTERM on leaving, with SIGKILL if that is not heard.

    The stdout of one that is not spoken to goes to ``log`` as well: a pipe that nobody reads would stop it once it is full.
    """
    with log.open("w") as errors:
        stdout = subprocess.PIPE if has_pipe else errors
        child = subprocess.Popen(arguments, stdout=stdout, stderr=errors, text=True, env=environment)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


@contextmanager
def running_module(name: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    with running([sys.executable, "-m", name, *arguments], log) as child:
        yield child


def read_line(child: subprocess.Popen[str], log: Path) -> str:
    """The child's next line; if it ended instead, its log is the error."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"{child.args!r} ended with status {child.wait()}:\n{log.read_text()[-2000:]}")
    return line


def read_json(child: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    answer = json.loads(read_line(child, log))
    assert isinstance(answer, dict)
    return answer


def wait_until_answering(port: int, child: subprocess.Popen[str], log: Path, deadline_s: float = START_DEADLINE_S) -> None:
    """Until GET /v1/models gets its 200 behind ``port``."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=1):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{child.args!r} does not answer ({error}):\n{log.read_text()[-2000:]}") from error
        time.sleep(0.05)

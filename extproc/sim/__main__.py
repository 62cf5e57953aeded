"""``python -m extproc.sim --port 0 --name r1``: prints ``listening HOST:PORT`` when it serves."""

import ctypes
import os
import signal
import sys
from typing import Final

from extproc.sim.server import serve
from extproc.sim.settings import parse_settings

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    settings = parse_settings(sys.argv[1:], environment=os.environ)
    if settings.die_with_parent:
        _die_with_parent()
    serve(settings, lambda port: _announce(f"listening {settings.host}:{port}"))


def _announce(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    """Ask Linux for SIGKILL when the starting thread ends (prctl(2)), so that no replica outlives a killed test run."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        sys.exit(1)


if __name__ == "__main__":
    main()

"""What /proc says about processes that we know."""

import os
import subprocess
import sys
import time

from bench import measure


def test_cpu_time_is_the_process_own() -> None:
    deadline = time.process_time() + 0.05
    while time.process_time() < deadline:
        pass
    assert abs(measure.cpu_s([os.getpid()]) - time.process_time()) <= 2 * measure.TICK_S


def test_process_that_ended_counts_as_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert measure.cpu_s([child.pid]) == 0


def test_family_has_children_and_their_children() -> None:
    program = "import subprocess, sys; print(subprocess.Popen(['cat'], stdin=0).pid, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        family = measure.family(os.getpid())
        assert {child.pid, grandchild} <= set(family)
        assert measure.family(grandchild) == [grandchild]
        assert child.stdin is not None
        child.stdin.close()

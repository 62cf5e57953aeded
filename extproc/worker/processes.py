"""Who is who among the processes of one server: its API server processes are siblings, children of one multiprocessing parent.

``vllm serve --api-server-count N`` and ``uvicorn --workers N`` both start their processes with multiprocessing. A server
that runs in a single process has no such parent and is its own family. Process ids are used again by the system, so a
process is named by its id and its start time.
"""

import multiprocessing
import os
from pathlib import Path

_STATE_FIELD, _START_TIME_FIELD = 0, 19  # of /proc/PID/stat, counted from the field after the command's name (proc(5))
_ENDED = ("Z", "X")


def process_name(pid: int) -> str:
    """``<pid>-<start time in clock ticks>``; the start time is 0 where /proc can't tell or the process is gone."""
    fields = _stat_fields(pid)
    return f"{pid}-{fields[_START_TIME_FIELD] if fields else 0}"


def family_name() -> str:
    """The same in every API server process of one server, and never the same for two servers or two starts of one."""
    parent = multiprocessing.parent_process()
    leader = os.getpid() if parent is None or parent.pid is None else parent.pid
    return f"{_pid_namespace()}-{process_name(leader)}"


def is_alive(name: str) -> bool:
    """Whether the process that ``process_name`` named still runs; a zombie does not."""
    pid = int(name.split("-")[0])
    if not Path("/proc/self/stat").exists():
        return _answers_signals(pid)
    fields = _stat_fields(pid)
    return fields is not None and fields[_STATE_FIELD] not in _ENDED and process_name(pid) == name


def is_family_gone(family: str) -> bool:
    """Whether a family's leader has ended, as far as this process can see: another container's processes can't be seen."""
    namespace, _, leader = family.partition("-")
    return namespace == _pid_namespace() and not is_alive(leader)


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name stands in parentheses and may itself hold spaces and parentheses.
    return text.rpartition(")")[2].split()


def _answers_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

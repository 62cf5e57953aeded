"""What processes have used, from /proc (proc(5)): CPU time with all their threads, and resident memory."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """User and system seconds together, of live and ended threads; 10 ms fine, so windows last seconds."""
    fields = (_stat_fields(pid) for pid in pids)
    return sum(int(stat[11]) + int(stat[12]) for stat in fields) * TICK_S


def rss_mib(pids: Iterable[int]) -> float:
    """Resident memory; pages that two processes share count twice."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def family(pid: int) -> list[int]:
    """``pid`` and all its descendants."""
    parents = {int(path.name): int(_stat_fields(int(path.name))[1]) for path in Path("/proc").iterdir() if path.name.isdigit()}
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def is_envoy(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/exe").endswith("/envoy")


def _stat_fields(pid: int) -> list[str]:
    """From ``state`` on; the name before it is in parentheses and may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X"] + ["0"] * 50  # ended since it was listed

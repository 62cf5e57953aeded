"""The shared table: atomic, bounded, and private to its user. test_siblings.py has it between real processes."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.contract.guard import AttemptState, GuardRefusal
from extproc.worker import attempt_table
from extproc.worker.attempt_table import AttemptTable, StateDirectoryError
from extproc.worker.processes import family_name, is_alive, is_family_gone, process_name

REMEMBER_MS = 60_000


@pytest.fixture
def table(tmp_path: Path) -> Iterator[AttemptTable]:
    table = AttemptTable(state_dir=tmp_path, remember_ms=REMEMBER_MS)
    yield table
    table.close()


@pytest.fixture
def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def claim(table: AttemptTable, attempt_id: str = "att_1", *, now_ms: int = 0) -> GuardRefusal | None:
    return table.claim(attempt_id=attempt_id, valid_until_ms=now_ms + 10_000, now_ms=now_ms)


def end(table: AttemptTable, attempt_id: str = "att_1", *, now_ms: int = 0) -> None:
    table.end(attempt_id, state=AttemptState.FINISHED, published_chunks=3, now_ms=now_ms)


def test_second_connection_of_one_server_sees_the_same_boot_id(table: AttemptTable, tmp_path: Path) -> None:
    other = AttemptTable(state_dir=tmp_path, remember_ms=REMEMBER_MS)
    assert other.boot_id == table.boot_id
    other.close()


def test_another_server_has_another_boot_id(table: AttemptTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_table, "family_name", lambda: "0-1-1")
    other = AttemptTable(state_dir=tmp_path, remember_ms=REMEMBER_MS)
    assert other.boot_id != table.boot_id
    other.close()


def test_ended_attempt_is_remembered_for_the_longest_lease_and_then_forgotten(table: AttemptTable) -> None:
    assert claim(table) is None
    end(table, now_ms=500)
    assert claim(table, now_ms=500 + REMEMBER_MS - 1) is GuardRefusal.DUPLICATE_ATTEMPT
    assert claim(table, now_ms=500 + REMEMBER_MS) is None


def test_running_attempt_is_never_forgotten(table: AttemptTable) -> None:
    assert claim(table) is None
    assert claim(table, now_ms=100 * REMEMBER_MS) is GuardRefusal.DUPLICATE_ATTEMPT


def test_end_is_recorded_once(table: AttemptTable) -> None:
    claim(table)
    end(table)
    table.end("att_1", state=AttemptState.STOPPED, published_chunks=9, now_ms=0)
    row = table.read("att_1")
    assert row is not None
    assert (row.state, row.published_chunks) == (AttemptState.FINISHED, 3)


def fill(table: AttemptTable) -> None:
    for number in range(100_000):
        table.revoke(f"att_{number:040}", now_ms=0)


def test_full_table_refuses_instead_of_forgetting(table: AttemptTable) -> None:
    table._connection.execute("PRAGMA max_page_count = 20")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        fill(table)
    assert claim(table, f"att_{0:040}") is GuardRefusal.TOMBSTONED


def test_change_by_another_process_is_seen_once_and_an_own_one_not(table: AttemptTable, tmp_path: Path) -> None:
    claim(table)
    assert not table.was_changed_elsewhere()
    other = AttemptTable(state_dir=tmp_path, remember_ms=REMEMBER_MS)
    other.revoke("att_1", now_ms=0)
    assert table.was_changed_elsewhere()
    assert not table.was_changed_elsewhere()
    other.close()


def test_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"deltafence-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(StateDirectoryError):
        AttemptTable(state_dir=tmp_path, remember_ms=REMEMBER_MS)


def test_link_to_somewhere_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"deltafence-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateDirectoryError):
        AttemptTable(state_dir=tmp_path, remember_ms=REMEMBER_MS)


def test_left_overs_of_ended_servers_are_removed_and_others_kept(table: AttemptTable, tmp_path: Path, ended_process: int) -> None:
    private = tmp_path / f"deltafence-{os.getuid()}"
    namespace = family_name().split("-")[0]
    ended = private / f"{namespace}-{ended_process}-77.db"
    invisible = private / f"1-{ended_process}-77.db"
    for path in (ended, private / f"{ended.name}-wal", invisible):
        path.touch()
    AttemptTable(state_dir=tmp_path, remember_ms=REMEMBER_MS).close()
    assert sorted(path.name for path in private.glob("*.db")) == sorted([invisible.name, f"{family_name()}.db"])
    assert not (private / f"{ended.name}-wal").exists()


def test_process_is_named_by_its_start_too(ended_process: int) -> None:
    own = process_name(os.getpid())
    pid, start = own.split("-")
    assert is_alive(own)
    assert not is_alive(f"{pid}-{int(start) + 1}")
    assert not is_alive(process_name(ended_process))


def test_zombie_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    name = process_name(process.pid)
    process.stdout.read()  # its end of the pipe closes as it ends; nobody has waited for it yet
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(name)
    process.stdout.close()
    process.wait()


def test_family_of_this_process_is_its_own_and_alive() -> None:
    assert multiprocessing.parent_process() is None
    assert family_name().endswith(process_name(os.getpid()))
    assert not is_family_gone(family_name())

"""The attempts of one server, shared by its API server processes.

Sibling processes accept from one socket, so a cancel or a renewal may reach a process other than the one that serves the
attempt. What they must agree on is one small SQLite database in a memory file system: its primary key makes a claim atomic,
its writes survive the death of any process, and its size has a limit. It is touched once when an attempt starts, once when
it ends and once per heartbeat or cancel, never per chunk.

Bounded in time: an attempt's own ``valid_until`` bars it from arriving later than the longest lease after the request was
granted, so a row older than that can be forgotten (DESIGN section 5).
"""

import fcntl
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from extproc.contract.guard import AttemptState, GuardRefusal
from extproc.worker.processes import family_name, is_alive, is_family_gone, process_name

BUSY_TIMEOUT_S: Final = 1.0
"""Writes take microseconds; one that waits longer than this means a sibling is stopped, and the claim is refused."""
PAGES_MAX: Final = 4096
"""16 MiB, about 100,000 attempts; beyond it a claim or a tombstone is refused instead of being forgotten."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS server (boot_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (
    attempt_id       TEXT PRIMARY KEY,
    owner            TEXT NOT NULL,
    state            TEXT NOT NULL,
    revoked          INTEGER NOT NULL DEFAULT 0,
    valid_until_ms   INTEGER NOT NULL,
    published_chunks INTEGER NOT NULL DEFAULT 0,
    forget_at_ms     INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS running ON attempts (owner) WHERE state = 'running';
CREATE INDEX IF NOT EXISTS ended ON attempts (forget_at_ms) WHERE forget_at_ms IS NOT NULL;
"""


class StateDirectoryError(Exception):
    """The state directory belongs to someone else or is open to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt as all processes see it; ``valid_until_ms`` on the worker's clock."""

    attempt_id: str
    owner: str
    state: AttemptState
    revoked: bool
    valid_until_ms: int
    published_chunks: int


class AttemptTable:
    """This process's connection to the shared table. Every method is one transaction and may raise sqlite3.Error."""

    def __init__(self, *, state_dir: Path, remember_ms: int) -> None:
        self._owner = process_name(os.getpid())
        self._remember_ms = remember_ms
        private = _private_directory(state_dir)
        with _locked(private):
            _remove_left_overs(private)
            self._connection = sqlite3.connect(private / f"{family_name()}.db", timeout=BUSY_TIMEOUT_S, isolation_level=None)
            self.boot_id = self._prepare()
        self._seen_version = self._version()

    def _prepare(self) -> str:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")  # losing power loses the leases too
        self._connection.execute(f"PRAGMA max_page_count = {PAGES_MAX}")
        self._connection.executescript(SCHEMA)
        new_id = f"boot_{secrets.token_hex(12)}"
        self._connection.execute("INSERT INTO server SELECT ? WHERE NOT EXISTS (SELECT 1 FROM server)", (new_id,))
        (boot_id,) = self._connection.execute("SELECT boot_id FROM server").fetchone()
        return str(boot_id)

    def close(self) -> None:
        """Leaves the file to the siblings; the next server on this machine removes it."""
        self._connection.close()

    def claim(self, *, attempt_id: str, valid_until_ms: int, now_ms: int) -> GuardRefusal | None:
        """Make this process the only one that serves the attempt, or say why it can't be."""
        with self._transaction():
            self._forget(now_ms)
            claimed = self._connection.execute(
                "INSERT INTO attempts (attempt_id, owner, state, valid_until_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (attempt_id, self._owner, AttemptState.RUNNING, valid_until_ms),
            )
            return None if claimed.rowcount == 1 else self._refusal_of_known(attempt_id)

    def refusal_of_known(self, attempt_id: str, *, now_ms: int) -> GuardRefusal | None:
        """Why an attempt that was here before can't be served; None where it is new."""
        with self._transaction():
            self._forget(now_ms)
            return self._refusal_of_known(attempt_id)

    def renew(self, leases: Iterable[tuple[str, int]], *, now_ms: int) -> None:
        """Lengthen leases ``(attempt_id, valid_until_ms)`` that still hold; same rule as ``valid_until_after_renewal``."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE attempts SET valid_until_ms = max(valid_until_ms, ?)"
                " WHERE attempt_id = ? AND state = 'running' AND valid_until_ms > ?",
                ((valid_until_ms, attempt_id, now_ms) for attempt_id, valid_until_ms in leases),
            )

    def revoke(self, attempt_id: str, *, now_ms: int) -> AttemptRow:
        """Take the attempt's right to publish, or leave a tombstone where it has not arrived. Returns the row after that."""
        with self._transaction():
            self._forget(now_ms)
            self._connection.execute(
                "INSERT INTO attempts (attempt_id, owner, state, revoked, valid_until_ms, forget_at_ms) VALUES (?, ?, ?, 1, ?, ?)"
                " ON CONFLICT DO UPDATE SET revoked = 1 WHERE state = 'running'",
                (attempt_id, self._owner, AttemptState.NEVER_STARTED, now_ms, now_ms + self._remember_ms),
            )
            row = self.read(attempt_id)
        assert row is not None
        return row

    def end(self, attempt_id: str, *, state: AttemptState, published_chunks: int, now_ms: int) -> None:
        """Record that the attempt can't publish any more."""
        self._connection.execute(
            "UPDATE attempts SET state = ?, published_chunks = ?, forget_at_ms = ? WHERE attempt_id = ? AND state = 'running'",
            (state, published_chunks, now_ms + self._remember_ms, attempt_id),
        )

    def end_if_owner_died(self, row: AttemptRow, *, now_ms: int) -> None:
        """A process that ended publishes nothing; its attempt is stopped."""
        if not is_alive(row.owner):
            self.end(row.attempt_id, state=AttemptState.STOPPED, published_chunks=row.published_chunks, now_ms=now_ms)

    def count_published(self, counts: Iterable[tuple[str, int]]) -> None:
        """Let siblings see how many chunks ``(attempt_id, chunks)`` were published so far."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE attempts SET published_chunks = ? WHERE attempt_id = ? AND state = 'running'",
                ((chunks, attempt_id) for attempt_id, chunks in counts),
            )

    def read(self, attempt_id: str) -> AttemptRow | None:
        """None where it never arrived or was forgotten."""
        return next(self._rows("attempt_id = ?", attempt_id), None)

    def own_running(self) -> list[AttemptRow]:
        """What this process serves."""
        return list(self._rows("state = 'running' AND owner = ?", self._owner))

    def running_elsewhere(self) -> list[AttemptRow]:
        """What the other processes serve, or served when they died."""
        return list(self._rows("state = 'running' AND owner <> ?", self._owner))

    def was_changed_elsewhere(self) -> bool:
        """Whether another process has written since the last call; costs a few microseconds."""
        version = self._version()
        changed = version != self._seen_version
        self._seen_version = version
        return changed

    def _refusal_of_known(self, attempt_id: str) -> GuardRefusal | None:
        row = self.read(attempt_id)
        if row is None:
            return None
        return GuardRefusal.TOMBSTONED if row.state is AttemptState.NEVER_STARTED else GuardRefusal.DUPLICATE_ATTEMPT

    def _forget(self, now_ms: int) -> None:
        self._connection.execute("DELETE FROM attempts WHERE forget_at_ms <= ?", (now_ms,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:  # commits, or takes everything back
            yield

    def _version(self) -> int:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _rows(self, condition: str, argument: str) -> Iterator[AttemptRow]:
        columns = "attempt_id, owner, state, revoked, valid_until_ms, published_chunks"
        query = f"SELECT {columns} FROM attempts WHERE {condition}"  # noqa: S608  (conditions are this module's own)
        for attempt_id, owner, state, revoked, valid_until_ms, published_chunks in self._connection.execute(query, (argument,)):
            yield AttemptRow(
                attempt_id=attempt_id,
                owner=owner,
                state=AttemptState(state),
                revoked=bool(revoked),
                valid_until_ms=valid_until_ms,
                published_chunks=published_chunks,
            )


def _private_directory(state_dir: Path) -> Path:
    """A directory of our own below one that others may write to; raises StateDirectoryError."""
    private = state_dir / f"deltafence-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    found = private.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise StateDirectoryError(f"{private} must be a directory of user {os.getuid()} that nobody else may enter")
    return private


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Siblings start at the same moment; one prepares the database at a time."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_left_overs(directory: Path) -> None:
    """A server can't know which of its processes ends last, so its file is removed by the next server here."""
    for database in directory.glob("*.db"):
        if is_family_gone(database.stem):
            for path in directory.glob(f"{database.name}*"):
                path.unlink(missing_ok=True)

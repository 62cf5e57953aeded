"""A process's name in the database, and the proof that it still lives.

What a process left unfinished may be settled by another one only when its name has expired. Safety does not hang on that clock:
whoever takes a request over also takes the right to write to it (requests.owner), so a process that was only asleep finds its
writes refused. The clock is the database's own; the clocks of two machines are never compared.
"""

import asyncio
import itertools
import logging
from typing import Final

from extproc.storage.migrations import SQL
from extproc.storage.script import Database, Dialect, Script, StorageUnavailable

TTL_MS: Final = 20_000
"""Longer than an attempt's lease (10 s by default): when a process counts as gone, its attempts can't publish any more."""
RENEWALS_PER_TTL: Final = 4

_log = logging.getLogger(__name__)


class Owner:
    """This process, as the rows that it is working on name it."""

    def __init__(self, database: Database, processor_id: str, ttl_ms: int = TTL_MS) -> None:
        self.processor_id = processor_id
        self._database = database
        self._ttl_ms = ttl_ms
        self._numbers = itertools.count(1)

    @property
    def dialect(self) -> Dialect:
        """Of the database."""
        return self._database.dialect

    def next_number(self) -> int:
        """A number that this process gives to one row only; with its name it makes a row unique. Safe from any thread."""
        return next(self._numbers)

    async def announce(self) -> None:
        """Say once that this process lives. Raises StorageUnavailable."""
        await self._database.write(self._keep_alive)

    async def run_renewals(self) -> None:
        """Say so again and again, for as long as the process works."""
        while True:
            await asyncio.sleep(self._ttl_ms / 1000 / RENEWALS_PER_TTL)
            try:
                await self.announce()
            except StorageUnavailable as error:
                _log.warning("processor %s could not renew its name in the database: %s", self.processor_id, error)

    async def leave(self) -> None:
        """Say that this process has ended and left nothing unfinished. Raises StorageUnavailable."""
        await self._database.write(self._leave)

    def _keep_alive(self) -> Script[None]:
        yield SQL("keep_alive", processor_id=self.processor_id, ttl_ms=self._ttl_ms)

    def _leave(self) -> Script[None]:
        yield SQL("leave", processor_id=self.processor_id)

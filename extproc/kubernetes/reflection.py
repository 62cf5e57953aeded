"""A collection as the API server last showed it, kept up to date: list, then watch, then begin again when that ends.

What is known is never forgotten because the server is away: readers get the last good picture and can see how old it is. Four
things end a watch: its proper end (watch on from the last version), 410 Gone (list again), trouble (wait, then list again), and
the resync, which bounds how long a change that the watch lost, for whatever reason, can stay unseen.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.kubernetes.client import AbsentError, ApiClient, ApiError, ExpiredError, ForbiddenError
from extproc.kubernetes.resources import Collection, Name, Object

PAUSE_S: Final = 0.5
"""Between two watches, so that a server or proxy that ends each at once is not asked in a tight loop. Nothing is lost by it."""
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
REFUSED_RETRY_S: Final = 60.0
"""After 403 or 404: somebody has to grant a right or install a definition first."""
RESYNC_S: Final = 600.0

LOGGER: Final = logging.getLogger("deltafence.kubernetes")

Changed = Callable[[Mapping[Name, Object]], None]
"""Told the whole picture after each change of it. Must not raise."""


class Standing(StrEnum):
    """How well a picture is kept."""

    STARTING = "starting"
    CURRENT = "current"
    STALE = "stale"
    """The server can't be asked; the picture is the last good one."""
    FORBIDDEN = "forbidden"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """What a reader should know about a picture."""

    standing: Standing
    age_s: float | None
    """Since the server last confirmed it; None where it never has."""
    trouble: str = ""


class Reflection:
    """One collection. Invariant: ``objects`` is replaced, never changed, so that a reader's picture stays whole."""

    def __init__(self, client: ApiClient, collection: Collection, on_change: Changed, *, resync_s: float = RESYNC_S) -> None:
        self.collection: Final = collection
        self.objects: Mapping[Name, Object] = {}
        self._client: Final = client
        self._on_change: Final = on_change
        self._resync_s: Final = resync_s
        self._standing = Standing.STARTING
        self._trouble = ""
        self._confirmed_at: float | None = None
        self._backoff_s = BACKOFF_FIRST_S
        self.synced: Final = asyncio.Event()
        """Set once the first list was read, or refused for a reason that waiting doesn't mend."""

    @property
    def freshness(self) -> Freshness:
        """How well the picture is kept, now."""
        age_s = None if self._confirmed_at is None else time.monotonic() - self._confirmed_at
        return Freshness(standing=self._standing, age_s=age_s, trouble=self._trouble)

    async def run(self) -> None:
        """Keep the picture until cancelled."""
        while True:
            try:
                await self._list_and_watch()
            except ExpiredError:
                await asyncio.sleep(self._next_pause_s())
            except ForbiddenError as error:
                await self._wait_after(Standing.FORBIDDEN, error)
            except AbsentError as error:
                await self._wait_after(Standing.ABSENT, error)
            except ApiError as error:
                await self._wait_after(Standing.STALE, error)

    async def _list_and_watch(self) -> None:
        objects, version = await self._client.list(self.collection)
        self._confirm()
        self._become({Name.of(found): found for found in objects})
        self.synced.set()
        try:
            async with asyncio.timeout(self._resync_s):
                while True:
                    version = await self._watch(version)
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            return

    async def _watch(self, version: str) -> str:
        """One watch to its end; the version to go on from."""
        async with aclosing(self._client.watch(self.collection, version)) as events:
            async for kind, found in events:
                version = str(found["metadata"]["resourceVersion"])
                self._confirm()
                self._backoff_s = BACKOFF_FIRST_S
                if kind != "BOOKMARK":
                    self._apply(kind, found)
        self._confirm()
        self._backoff_s = BACKOFF_FIRST_S
        return version

    def _apply(self, kind: str, found: Object) -> None:
        objects = dict(self.objects)
        if kind == "DELETED":
            objects.pop(Name.of(found), None)
        else:
            objects[Name.of(found)] = found
        self._become(objects)

    def _become(self, objects: Mapping[Name, Object]) -> None:
        if objects != self.objects:
            self.objects = objects
            self._on_change(objects)

    def _confirm(self) -> None:
        if self._standing is not Standing.CURRENT:
            LOGGER.info("%s: current", self.collection)
        self._standing, self._trouble = Standing.CURRENT, ""
        self._confirmed_at = time.monotonic()

    async def _wait_after(self, standing: Standing, error: ApiError) -> None:
        if (standing, str(error)) != (self._standing, self._trouble):
            LOGGER.warning("%s: %s: %s", self.collection, standing, error)
        self._standing, self._trouble = standing, str(error)
        if standing is Standing.STALE:
            wait_s = self._next_pause_s()
        else:
            wait_s = REFUSED_RETRY_S
            self.synced.set()
        await asyncio.sleep(wait_s)

    def _next_pause_s(self) -> float:
        """Longer each time, until a watch has shown something: lists may succeed where no watch does."""
        pause_s = self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311  (spreads processors, hides nothing)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        return pause_s

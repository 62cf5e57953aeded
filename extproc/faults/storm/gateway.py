"""One processor process: which replicas it knows, how busy it has made each, and its model's pool (the real one)."""

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from random import Random

from extproc.processor.pools import Pool


class Gateway:
    """Chooses as replicas/roster.py does, the least busy of those it may, in a form that a thousand replicas don't slow down."""

    def __init__(self, replicas: int, random: Random) -> None:
        self.pool = Pool()
        self._random = random
        self._running = [0] * replicas
        self._known_dead: set[int] = set()
        # Invariant: every replica has an entry with its present count; entries with another count are stale.
        self._by_busyness = [(0, random.random(), index) for index in range(replicas)]
        heapify(self._by_busyness)

    def choose(self, failed_on: Collection[int]) -> int | None:
        """The least busy replica that is not known to be dead and on which this request has not failed."""
        passed_over = []
        chosen = None
        while self._by_busyness and chosen is None:
            entry = heappop(self._by_busyness)
            running, _, index = entry
            if running != self._running[index] or index in self._known_dead:
                continue
            passed_over.append(entry)
            chosen = None if index in failed_on else index
        for entry in passed_over:
            heappush(self._by_busyness, entry)
        return chosen

    def acquire(self, index: int) -> None:
        """An attempt starts there."""
        self._count(index, +1)

    def release(self, index: int) -> None:
        """It has ended."""
        self._count(index, -1)

    def notice_dead(self, index: int) -> None:
        """Health has looked at it."""
        self._known_dead.add(index)

    def _count(self, index: int, change: int) -> None:
        self._running[index] += change
        heappush(self._by_busyness, (self._running[index], self._random.random(), index))

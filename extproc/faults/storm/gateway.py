"""One processor process: which replicas it knows, how busy it has made each, and its model's pool (the real one)."""

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random

from extproc.processor.pools import Pool


class Gateway:
    """Chooses as replicas/roster.py does, the least busy and among equals in turn, in a form that a thousand don't slow down."""

    def __init__(self, replicas: int, random: Random) -> None:
        self.pool = Pool()
        self._known_dead: set[int] = set()
        self._running = [0] * replicas
        self._turns = count(replicas)
        self._turn = random.sample(range(replicas), replicas)
        # Invariant: every replica that is not known to be dead has the entry (running, turn, index); all others are stale.
        self._entries = [(0, turn, index) for index, turn in enumerate(self._turn)]
        heapify(self._entries)

    def choose(self, failed_on: Collection[int]) -> int | None:
        """The least busy replica that is not known to be dead and on which this request has not failed."""
        passed_over = []
        chosen = None
        while self._entries and chosen is None:
            entry = heappop(self._entries)
            _, turn, index = entry
            if turn != self._turn[index] or index in self._known_dead:
                continue
            if index in failed_on:
                passed_over.append(entry)
            else:
                chosen = index
                self._enter(index)
        for entry in passed_over:
            heappush(self._entries, entry)
        return chosen

    def acquire(self, index: int) -> None:
        """An attempt starts there."""
        self._running[index] += 1
        self._enter(index)

    def release(self, index: int) -> None:
        """It has ended."""
        self._running[index] -= 1
        self._enter(index)

    def notice_dead(self, index: int) -> None:
        """Health has looked at it."""
        self._known_dead.add(index)

    def _enter(self, index: int) -> None:
        self._turn[index] = next(self._turns)
        heappush(self._entries, (self._running[index], self._turn[index], index))

"""The engine: slots, prefill, steps, hangs; the numbers behind /metrics.

A model of what FACTS A tells of vLLM 0.32, not of its scheduler: each request steps on its own timer, and every step that has
outputs counts once. A prefill makes no output and counts no step; it shows in the KV cache's usage alone.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from extproc.sim.script import FinishReason
from extproc.sim.settings import Settings

BLOCK_TOKENS: Final = 16
SLICE_MS: Final = 50.0
"""A long prefill runs in slices, after each of which KV usage has grown and an abort is noticed."""

ENGINE_ERROR: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
"""vLLM's own text for a dead engine."""


class EngineError(Exception):
    """The engine gave an error for this request, or died."""


class EngineAborted(Exception):  # noqa: N818  (no error: a way to finish)
    """The engine ended this request with the finish reason ``abort`` (as on SIGTERM: CASES K8-04)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReadings:
    """One engine's numbers at one moment."""

    running: int
    waiting: int
    steps: int
    step_tokens: int
    prompt_tokens: int
    generation_tokens: int
    kv_cache_usage: float
    finished: Counter[FinishReason]


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request in its slot. Two that look alike are two, so an engine's list tells them apart by identity."""

    engine: "Engine"
    prompt_tokens: int
    kv_tokens: float = 0.0
    slowness: float = 1.0
    """Step times are multiplied by this."""
    finish: FinishReason = FinishReason.ABORT
    """What the request is counted under when its slot is freed."""

    async def prefill(self, share: float) -> None:
        """Do this share of the prefill."""
        settings = self.engine.settings
        left_ms = share * (settings.prefill_ms + self.prompt_tokens * settings.prefill_us_per_token / 1000)
        slices = max(1, round(left_ms / SLICE_MS))
        for _ in range(slices):
            await self.engine.pass_time(left_ms / slices)
            self.kv_tokens += share * self.prompt_tokens / slices

    async def step(self, *, tokens: int, first: bool) -> None:
        """Compute one token for each choice; the first one falls out of the prefill."""
        if not first:
            await self.engine.pass_time(self.engine.settings.token_interval_ms * self.slowness)
        self.engine.count_step(tokens=tokens, prompt_tokens=self.prompt_tokens if first else 0)
        self.kv_tokens += tokens


@dataclass(slots=True)
class Engine:
    settings: Settings
    label: str = "0"
    dead: bool = False
    waiting: int = 0
    placed: int = 0
    """Requests that were ever given to it."""
    _running: list[Sequence] = field(default_factory=list)
    _slots: asyncio.Semaphore = field(init=False)
    _moving: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _frozen: EngineReadings | None = None
    _stopping: bool = False
    _steps: int = 0
    _step_tokens: int = 0
    _prompt_tokens: int = 0
    _generation_tokens: int = 0
    _finished: Counter[FinishReason] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.settings.slots)
        self._moving.set()

    @property
    def load(self) -> int:
        return len(self._running) + self.waiting

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def is_hung(self) -> bool:
        return not self._moving.is_set()

    def hang(self) -> None:
        """Stop all progress. The gauges travel with engine outputs, so all readings stay what they are."""
        self._frozen = self.readings()
        self._moving.clear()

    def unhang(self) -> None:
        self._frozen = None
        self._moving.set()

    def die(self) -> None:
        self.dead = True
        self.unhang()
        self.release()

    def abort_all(self) -> None:
        self._stopping = True
        self.unhang()
        self.release()

    async def hold(self) -> None:
        """Wait for ``release``. Raises EngineError, EngineAborted where the engine has ended meanwhile."""
        await self._released.wait()
        self.check()

    def release(self) -> None:
        """Let go on what is held now; what is held later waits for the next release."""
        self._released.set()
        self._released = asyncio.Event()

    def check(self) -> None:
        """Raises EngineError, EngineAborted."""
        if self.dead:
            raise EngineError(ENGINE_ERROR)
        if self._stopping:
            raise EngineAborted

    @asynccontextmanager
    async def admit(self, prompt_tokens: int) -> AsyncIterator[Sequence]:
        """Wait for a slot and hold it; leaving it counts the request under its finish reason."""
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        sequence = Sequence(engine=self, prompt_tokens=prompt_tokens)
        self._running.append(sequence)
        try:
            yield sequence
        except EngineError:
            sequence.finish = FinishReason.ERROR
            raise
        finally:
            self._running.remove(sequence)
            self._slots.release()
            self._finished[sequence.finish] += 1

    async def pass_time(self, duration_ms: float) -> None:
        self.check()
        await asyncio.sleep(duration_ms / 1000)
        await self._moving.wait()
        self.check()

    def count_step(self, *, tokens: int, prompt_tokens: int) -> None:
        self._steps += 1
        self._step_tokens += tokens + prompt_tokens
        self._prompt_tokens += prompt_tokens
        self._generation_tokens += tokens

    def readings(self) -> EngineReadings:
        if self._frozen is not None:
            return self._frozen
        kv_tokens = sum(sequence.kv_tokens for sequence in self._running)
        return EngineReadings(
            running=len(self._running),
            waiting=self.waiting,
            steps=self._steps,
            step_tokens=self._step_tokens,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            kv_cache_usage=min(1.0, kv_tokens / (self.settings.blocks * BLOCK_TOKENS)),
            finished=Counter(self._finished),
        )

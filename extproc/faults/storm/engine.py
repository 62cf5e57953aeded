"""One replica as its load sees it: so many slots, prompts read one after the other, a queue without an end, as vLLM's is."""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from extproc.faults.storm.agenda import Agenda

BREAK_SEEN_MS: Final = 4.0
"""From a process's death until the egress connection shows it (measured on Envoy 1.40)."""


class Caller(Protocol):
    """Who asked for a job. Each is told about its current job only."""

    def on_first_delta(self, job: "Job") -> None:
        """The prompt is read."""

    def on_finished(self, job: "Job") -> None:
        """The answer is whole."""

    def on_broken(self, job: "Job") -> None:
        """The connection broke."""

    def on_refused(self, job: "Job") -> None:
        """There was none: nobody listens there."""


class Stage(Enum):
    """Where a job is."""

    WAITING = auto()
    READING = auto()
    DECODING = auto()
    OVER = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One attempt at its engine."""

    caller: Caller
    number: int
    prefill_ms: float
    decode_ms: float
    stage: Stage = Stage.WAITING

    @property
    def has_begun(self) -> bool:
        """Whether its first delta is out."""
        return self.stage is Stage.DECODING


class Engine:
    """One replica. ``held`` counts what it runs and what waits for it: vLLM's num_requests_running and _waiting."""

    def __init__(self, agenda: Agenda, *, slots: int) -> None:
        self.is_alive = True
        self.read_ms: dict[bool, float] = {False: 0.0, True: 0.0}
        """Time spent on reading prompts, by whether it was a repeat's."""
        self._agenda = agenda
        self._slots = slots
        self._running = 0
        self._reading: Job | None = None
        self._reading_since_ms = 0.0
        self._waiting: deque[Job] = deque()
        self._jobs: dict[Job, None] = {}

    @property
    def held(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Take a job of a caller whose connection was accepted."""
        assert self.is_alive
        self._jobs[job] = None
        self._waiting.append(job)
        self._read_next()

    def add_decoding(self, job: Job) -> None:
        """A job that was here before the study began."""
        self._jobs[job] = None
        self._running += 1
        self._decode(job)

    def cancel(self, job: Job) -> None:
        """The caller has closed the connection: the job ends at once, wherever it is."""
        if job.stage is not Stage.OVER and self.is_alive:
            self._leave(job)

    def die(self) -> None:
        """The process is killed, and everybody's connection breaks."""
        self.is_alive = False
        jobs, self._jobs = self._jobs, {}
        for job in jobs:
            job.stage = Stage.OVER
            self._agenda.after(BREAK_SEEN_MS, job.caller.on_broken, job)

    def _read_next(self) -> None:
        while self._reading is None and self._running < self._slots and self._waiting:
            job = self._waiting.popleft()
            if job.stage is Stage.WAITING:
                job.stage = Stage.READING
                self._running += 1
                self._reading = job
                self._reading_since_ms = self._agenda.now_ms
                self._agenda.after(job.prefill_ms, self._has_read, job)

    def _has_read(self, job: Job) -> None:
        if job.stage is Stage.READING:
            self._stop_reading(job)
            self._decode(job)
            job.caller.on_first_delta(job)
            self._read_next()

    def _decode(self, job: Job) -> None:
        job.stage = Stage.DECODING
        self._agenda.after(job.decode_ms, self._has_finished, job)

    def _has_finished(self, job: Job) -> None:
        if job.stage is Stage.DECODING:
            self._leave(job)
            job.caller.on_finished(job)

    def _stop_reading(self, job: Job) -> None:
        self._reading = None
        self.read_ms[job.number > 1] += self._agenda.now_ms - self._reading_since_ms

    def _leave(self, job: Job) -> None:
        if job.stage is Stage.READING:
            self._stop_reading(job)
        if job.stage is not Stage.WAITING:
            self._running -= 1
        job.stage = Stage.OVER
        del self._jobs[job]
        self._read_next()

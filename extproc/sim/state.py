"""One replica's state: its engines, its armed faults, its log."""

from dataclasses import dataclass, field
from pathlib import Path

from extproc.sim.engine import Engine
from extproc.sim.faults import FaultBook
from extproc.sim.request_log import RequestLog
from extproc.sim.settings import MetricsMode, Settings


@dataclass(slots=True)
class Replica:
    """What all routes of one replica share."""

    settings: Settings
    engines: tuple[Engine, ...] = field(init=False)
    faults: FaultBook = field(init=False)
    log: RequestLog = field(init=False)
    metrics: MetricsMode = field(init=False)

    def __post_init__(self) -> None:
        self.engines = tuple(Engine(self.settings, str(number)) for number in range(self.settings.engines))
        self.log = RequestLog(self.settings.record_limit)
        self.metrics = self.settings.metrics
        self.faults = FaultBook(Path(self.settings.claims) if self.settings.claims else None)
        self.faults.arm(self.settings.faults)

    @property
    def models(self) -> tuple[str, ...]:
        return (self.settings.model, *self.settings.adapters)

    def place(self) -> Engine:
        """The engine of one more request: the least busy, and of equals the one that was given fewer, since those that come at
        once have not begun anywhere yet."""
        engine = min(self.engines, key=lambda engine: (engine.load, engine.placed))
        engine.placed += 1
        return engine

    def abort_all(self) -> None:
        """What vLLM does with its requests on SIGTERM (CASES K8-04)."""
        for engine in self.engines:
            engine.abort_all()

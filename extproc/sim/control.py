"""The simulator's own routes: faults, hangs, evidence. Times are CLOCK_MONOTONIC seconds."""

import asyncio
import json
import os
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from extproc.sim.engine import Engine
from extproc.sim.faults import decode_fault
from extproc.sim.settings import MetricsMode
from extproc.sim.state import Replica
from extproc.sim.strikes import ENGINE_DEATH_DELAY_MS


class ControlPages:
    """Reads and changes one replica while it runs."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    def routes(self) -> list[Route]:
        return [
            Route("/sim/log", self.log),
            Route("/sim/state", self.state),
            Route("/sim/faults", self.faults),
            Route("/sim/faults", self.arm, methods=["POST"]),
            Route("/sim/metrics", self.metrics, methods=["POST"]),
            Route("/sim/hang", self.hang, methods=["POST"]),
            Route("/sim/unhang", self.unhang, methods=["POST"]),
            Route("/sim/release", self.release, methods=["POST"]),
            Route("/sim/die", self.die, methods=["POST"]),
            Route("/sim/reset", self.reset, methods=["POST"]),
        ]

    async def log(self, request: Request) -> Response:
        """Every request since the start or the last reset, oldest first (extproc/sim/request_log.py)."""
        return JSONResponse(list(self.replica.log.listing()))

    async def state(self, request: Request) -> Response:
        """The truth, also while the engine hangs and /metrics shows its last values."""
        engines = self.replica.engines
        return JSONResponse(
            {
                "name": self.replica.settings.name,
                "pid": os.getpid(),
                "now": time.monotonic(),
                "running": sum(engine.running for engine in engines),
                "waiting": sum(engine.waiting for engine in engines),
                "hung": [engine.label for engine in engines if engine.is_hung],
            }
        )

    async def faults(self, request: Request) -> Response:
        return JSONResponse(self.replica.faults.listing())

    async def arm(self, request: Request) -> Response:
        """Replace all faults by a JSON list of them (or by one JSON object); 400 says what is wrong."""
        try:
            documents = json.loads(await request.body())
            self.replica.faults.arm([decode_fault(document) for document in _as_list(documents)])
        except (TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse(self.replica.faults.listing())

    async def metrics(self, request: Request) -> Response:
        """``{"mode": one of MetricsMode}``."""
        try:
            self.replica.metrics = MetricsMode((await request.json())["mode"])
        except (KeyError, TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({"mode": self.replica.metrics})

    async def hang(self, request: Request) -> Response:
        """Stop the progress of all engines, or of ``?engine=LABEL`` (HL-08). /health stays 200, /metrics frozen."""
        for engine in self._chosen(request):
            engine.hang()
        return await self.state(request)

    async def unhang(self, request: Request) -> Response:
        for engine in self._chosen(request):
            engine.unhang()
        return await self.state(request)

    async def release(self, request: Request) -> Response:
        """Let everything go on that a ``hold`` has stopped."""
        for engine in self._chosen(request):
            engine.release()
        return await self.state(request)

    async def die(self, request: Request) -> Response:
        """The engine dies as by the fault ``engine_death``: in-band errors, then the process ends with status 0 (HL-11)."""
        for engine in self._chosen(request):
            engine.die()
        asyncio.get_running_loop().call_later(ENGINE_DEATH_DELAY_MS / 1000, os._exit, 0)
        return await self.state(request)

    async def reset(self, request: Request) -> Response:
        """No faults, nothing held or hung, normal metrics, an empty log: as for the next test. Requests that still run stay."""
        self.replica.faults.arm(())
        self.replica.metrics = self.replica.settings.metrics
        self.replica.log.clear()
        await self.release(request)
        return await self.unhang(request)

    def _chosen(self, request: Request) -> list[Engine]:
        label = request.query_params.get("engine")
        return [engine for engine in self.replica.engines if label is None or engine.label == label]


def _as_list(documents: Any) -> list[Any]:  # noqa: ANN401  (JSON of any shape)
    return documents if isinstance(documents, list) else [documents]

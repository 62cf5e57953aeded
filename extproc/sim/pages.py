"""vLLM's routes besides the four APIs."""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from extproc.sim.dialects.writer import error_body
from extproc.sim.metrics import CONTENT_TYPE, exposition
from extproc.sim.reading import Api, RequestError, read_request, tokenize
from extproc.sim.settings import MetricsMode
from extproc.sim.state import Replica

VERSION = "0.32.0"


class VllmPages:
    """Health, models, metrics, tokenizer."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health),
            Route("/ping", self.health, methods=["GET", "POST"]),
            Route("/load", self.load),
            Route("/version", self.version),
            Route("/v1/models", self.models),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/metrics", self.metrics),
        ]

    async def health(self, request: Request) -> Response:
        """200 even while the engine hangs (HL-01); 503 once it is dead."""
        return Response(status_code=503 if any(engine.dead for engine in self.replica.engines) else 200)

    async def load(self, request: Request) -> Response:
        return JSONResponse({"server_load": sum(engine.load for engine in self.replica.engines)})

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def models(self, request: Request) -> Response:
        settings = self.replica.settings
        card = {
            "id": settings.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": settings.root,
            "parent": None,
            "max_model_len": settings.max_model_len,
        }
        adapters = [card | {"id": name, "root": name, "parent": settings.model} for name in settings.adapters]
        return JSONResponse({"object": "list", "data": [card, *adapters]})

    async def tokenize(self, request: Request) -> Response:
        """For ``{"prompt": ...}`` or ``{"messages": ...}``, as vLLM."""
        api = Api.COMPLETIONS if b'"prompt"' in await request.body() else Api.CHAT
        try:
            read = read_request(api, await request.body(), default_model=self.replica.settings.model)
        except RequestError as error:
            return JSONResponse(error_body(api, error.status, error.message, error.param), error.status)
        tokens = tokenize(read.prompt)
        limit = self.replica.settings.max_model_len
        return JSONResponse({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})

    async def metrics(self, request: Request) -> Response:
        mode = self.replica.metrics
        match mode:
            case MetricsMode.SILENT:
                await asyncio.Event().wait()
            case MetricsMode.ERROR:
                return PlainTextResponse("Internal Server Error", 500)
            case MetricsMode.ABSENT:
                return JSONResponse({"detail": "Not Found"}, 404)
            case MetricsMode.EMPTY:
                return PlainTextResponse("")
        text = exposition(
            self.replica.settings,
            self.replica.engines,
            with_engines=mode is not MetricsMode.ONLY_PROCESS_SERIES,
            with_process=mode is not MetricsMode.NO_PROCESS_SERIES,
        )
        return Response(text, headers={"content-type": CONTENT_TYPE})

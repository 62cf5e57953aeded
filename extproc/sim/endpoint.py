"""The routes of the four APIs."""

import asyncio
import time
import uuid
from collections.abc import Coroutine
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from extproc.sim.connection import connection_of
from extproc.sim.dialects import writer_for
from extproc.sim.dialects.writer import Answer, error_body
from extproc.sim.generation import Generation
from extproc.sim.publishing import Publisher
from extproc.sim.reading import Api, RequestError, read_request
from extproc.sim.request_log import Ended, Record
from extproc.sim.state import Replica
from extproc.sim.strikes import Strikes
from extproc.sim.tool import call_tool


class GenerationEndpoint:
    """One API's route. An ASGI app of its own, since it needs the bare ``send`` and the connection."""

    def __init__(self, replica: Replica, api: Api) -> None:
        self.replica = replica
        self.api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(Headers(scope=scope))
        record = self.replica.log.open(self.api, headers)
        publisher = Publisher(send, record)
        try:
            body = await Request(scope, receive).body()
            generation = self._generation(body, headers, scope, publisher, record)
            await _run_while_connected(generation.run(), receive, publisher, record)
        except RequestError as error:
            await publisher.error(error.status, error_body(self.api, error.status, error.message, error.param))
            record.end(Ended.REFUSED)
        except ClientDisconnect:
            record.end(Ended.CLIENT_GONE)
        finally:
            record.end(Ended.CANCELLED)

    def _generation(self, body: bytes, headers: dict[str, str], scope: Scope, publisher: Publisher, record: Record) -> Generation:
        replica, settings = self.replica, self.replica.settings
        request = read_request(self.api, body, default_model=settings.model)
        if request.model not in replica.models:
            raise RequestError(404, f"The model `{request.model}` does not exist.", param="model")
        record.stream = request.stream
        answer = Answer(request=request, id=headers.get("x-request-id") or uuid.uuid4().hex, created=int(time.time()))
        engine = replica.place()
        writer = writer_for(answer)
        return Generation(
            settings=settings,
            engine=engine,
            answer=answer,
            writer=writer,
            publisher=publisher,
            record=record,
            call_tool=partial(call_tool, settings.tool_url),
            strikes=Strikes(
                replica.faults.claim(stream=request.stream, body=body, headers=headers),
                publisher=publisher,
                writer=writer,
                record=record,
                engine=engine,
                connection=connection_of(scope),
            ),
        )


async def _run_while_connected(
    generation: Coroutine[Any, Any, None], receive: Receive, publisher: Publisher, record: Record
) -> None:
    """Run it, and cancel it as soon as the client leaves: vLLM aborts such a request at once, streamed or not."""
    work = asyncio.create_task(generation, name=f"generation {record.number}")
    leaving = asyncio.create_task(_client_leaves(receive), name=f"disconnect of {record.number}")
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not publisher.is_ending:
            record.end(Ended.CLIENT_GONE)
            work.cancel()
        await asyncio.wait((work,))
        if not work.cancelled():
            work.result()
    finally:
        work.cancel()
        leaving.cancel()
        await asyncio.wait((work, leaving))


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Two uvicorn processes on one socket, as ``vllm serve --api-server-count 2`` has them; prints its port. Run as a script.

``GET /`` tells the process id; any POST streams one chunk and then stays silent until it is cancelled.
"""

import asyncio
import os
import socket

import uvicorn
from uvicorn.supervisors import Multiprocess

from extproc.worker import LeaseGuard
from extproc.worker.asgi import Receive, Scope, Send

PROCESSES = 2


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    process_id = str(os.getpid()).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-process", process_id)]})
    await send({"type": "http.response.body", "body": process_id, "more_body": scope["method"] == "POST"})
    if scope["method"] == "POST":
        await asyncio.Event().wait()


def create_app() -> LeaseGuard:
    """Called once in each process."""
    return LeaseGuard(app)


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        "tests.unit.worker.sibling_server:create_app", factory=True, workers=PROCESSES, lifespan="off", log_level="critical"
    )
    print(listener.getsockname()[1], flush=True)
    Multiprocess(config, sockets=[listener]).run()


if __name__ == "__main__":
    main()

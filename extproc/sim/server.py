"""uvicorn around the app, set as vLLM sets it: keep-alive 5 s, one process, uvloop where it is installed."""

import socket
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from extproc.sim.connection import ReplicaProtocol
from extproc.sim.replica import create_app
from extproc.sim.settings import Settings

KEEP_ALIVE_S: Final = 5
"""vLLM's default (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): a proxy's idle connections must end sooner (EN-09)."""
SHUTDOWN_S: Final = 2
"""How long streams that were aborted by SIGTERM may take to say so."""
BACKLOG: Final = 2048


class ReplicaServer(uvicorn.Server):
    """Announces its port when it serves; on SIGTERM its requests end with the finish reason ``abort``, as vLLM's do."""

    def __init__(self, settings: Settings, announce: Callable[[int], None]) -> None:
        self.app = create_app(settings)
        self._announce = announce
        config = uvicorn.Config(
            self.app,
            http=ReplicaProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.app.state.replica.abort_all()
        super().handle_exit(sig, frame)


def serve(settings: Settings, announce: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError where the port is taken."""
    with _listening_socket(settings) as listener:
        ReplicaServer(settings, announce).run(sockets=[listener])


def _listening_socket(settings: Settings) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A replica that was killed may be started on its port again at once.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((settings.host, settings.port))
    return listener

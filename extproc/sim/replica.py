"""The ASGI app: vLLM's routes, and the simulator's own under /sim/."""

import os

from starlette.applications import Starlette
from starlette.routing import Route

from extproc.sim.control import ControlPages
from extproc.sim.endpoint import GenerationEndpoint
from extproc.sim.pages import VllmPages
from extproc.sim.reading import PATHS
from extproc.sim.settings import Settings
from extproc.sim.state import Replica


def create_app(settings: Settings) -> Starlette:
    """A whole replica as an app; its ``state.replica`` is the Replica. It runs on ``ReplicaProtocol`` (extproc/sim/server.py)."""
    replica = Replica(settings)
    generations = [Route(path, GenerationEndpoint(replica, api), methods=["POST"]) for api, path in PATHS.items()]
    app = Starlette(routes=[*generations, *VllmPages(replica).routes(), *ControlPages(replica).routes()])
    app.state.replica = replica
    if settings.guard:
        _add_guard(app, settings.token)
    return app


def _add_guard(app: Starlette, token: str) -> None:
    """As vLLM's ``--middleware`` does, but for a token that may be given here instead of by the environment."""
    from extproc.worker import LeaseGuard  # only here: a replica without the guard runs without the worker's state
    from extproc.worker.settings import TOKEN, TOKEN_FILE, GuardSettings

    environment = dict(os.environ)
    if token:
        environment.pop(TOKEN_FILE, None)
        environment[TOKEN] = token
    app.add_middleware(LeaseGuard, settings=GuardSettings.from_environment(environment))

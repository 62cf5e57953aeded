"""Two real vLLM servers with the guard, started once for all tests; ``make test-vllm`` prepares their environment."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from extproc.links.listening import free_port
from tests.real_vllm.server import VllmServer

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(os.environ.get("VLLM_ENVIRONMENT", ROOT / ".venv-vllm"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of a tiny model."""
    folder = tmp_path_factory.mktemp("model")
    python = ENVIRONMENT / "bin" / "python"
    subprocess.run([python, Path(__file__).with_name("make_model.py"), folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def launched(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VllmServer]]:
    """Two servers that were started together, since each needs a minute."""
    servers = [
        VllmServer(environment=ENVIRONMENT, model=model, folder=tmp_path_factory.mktemp("vllm"), port=free_port())
        for _ in range(2)
    ]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """Without pooled connections: uvicorn closes idle ones after 5 s."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0)) as session:
        yield session


@pytest.fixture
async def servers(launched: list[VllmServer], session: aiohttp.ClientSession) -> list[VllmServer]:
    """Both, ready and idle. A server that a test has ended is started again."""
    for server in launched:
        if server.process is None:
            server.start()
    for server in launched:
        await server.wait_until_ready(session)
        await server.wait_until_running(session, 0)
    return launched


@pytest.fixture
def server(servers: list[VllmServer]) -> VllmServer:
    """One of them."""
    return servers[0]

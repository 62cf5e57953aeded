"""A Kubernetes API on the loopback interface, and a client of it."""

from collections.abc import AsyncIterator

import pytest

from extproc.kubernetes.access import ApiAccess
from extproc.kubernetes.client import ApiClient
from tests.kubernetes_api.server import ApiServer, api_server


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with api_server() as server:
        yield server


@pytest.fixture
async def client(api: ApiServer) -> AsyncIterator[ApiClient]:
    async with ApiClient(ApiAccess(url=api.url, namespace="default")) as client:
        yield client

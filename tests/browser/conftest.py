"""The admin server under a test's control, and a browser in front of it."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, chromium
from tests.unit.app.status.conftest import admin

__all__ = ["admin"]

SCREENSHOTS = Path(os.environ.get("DELTAFENCE_SCREENSHOTS", Path(__file__).parents[2] / "out" / "screenshots"))


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture
def screenshots() -> Path:
    return SCREENSHOTS

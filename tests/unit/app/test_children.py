"""Children end with their group, as fast as whoever leaves it asks."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from extproc.app.children import Child, ChildGroup

LIMIT_S = 30.0
DEAF = """
import pathlib, signal, sys
directory = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (directory / "asked").touch())
(directory / "ready").touch()
while True:
    signal.pause()
"""
"""Notes that it was asked to end, and goes on."""


async def appears(file: Path) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not file.exists():
            await asyncio.sleep(0.01)


async def leave(group: ChildGroup, children: list[Child], directory: Path, stay: asyncio.Event) -> None:
    async with group:
        children.append(await group.start("deaf", [sys.executable, "-c", DEAF, str(directory)]))
        await stay.wait()


@pytest.mark.parametrize("leaves", [True, False], ids=["while they have their grace", "before they were asked"])
async def test_a_cancellation_leaves_children_no_grace(tmp_path: Path, leaves: bool) -> None:
    children: list[Child] = []
    stay = asyncio.Event()
    leaving = asyncio.create_task(leave(ChildGroup(grace_s=3_600), children, tmp_path, stay))
    await appears(tmp_path / "ready")
    if leaves:
        stay.set()
        await appears(tmp_path / "asked")
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(leaving, LIMIT_S)
    assert children[0].process.returncode == -signal.SIGKILL
    assert (tmp_path / "asked").exists() is leaves

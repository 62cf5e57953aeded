"""Child processes that cannot outlive this one.

Linux keeps the promise: each child asks the kernel for SIGKILL at its parent's death (exec_bound.py), so not even a SIGKILL of
the parent leaves one behind. The kernel means the parent *thread*, so children are started from the main thread only.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

EXEC_BOUND: Final = Path(__file__).with_name("exec_bound.py")
STDERR_FD: Final = 2

Result = TypeVar("Result")


class ChildDiedError(Exception):
    """A child ended by itself."""

    def __init__(self, child: "Child", status: int) -> None:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        super().__init__(f"{child.name} {how}; its own log is above")
        self.child = child


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running child and what people call it."""

    name: str
    process: asyncio.subprocess.Process

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    async def wait(self) -> int:
        """The exit status once it ends; negative for the signal that ended it."""
        return await self.process.wait()

    async def stop(self, *, grace_s: float) -> None:
        """SIGTERM, then SIGKILL for its process group after the grace."""
        if grace_s > 0:
            self._signal(signal.SIGTERM)
        await self.end_within(grace_s=grace_s)

    async def end_within(self, *, grace_s: float) -> None:
        """Wait for an end that was asked for by other means; SIGKILL after the grace."""
        try:
            await asyncio.wait_for(self.process.wait(), grace_s)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # The group is the child's own. asyncio reaps a child in a thread and tells of it a moment later.
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


async def start_child(name: str, command: Sequence[str | os.PathLike[str]]) -> Child:
    """Start a command, named by its path, whose output goes to our stderr.

    It has a process group of its own, so that Ctrl-C reaches only us. A command that cannot be executed ends with status 1, and
    says why.
    """
    assert threading.current_thread() is threading.main_thread()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", EXEC_BOUND, str(os.getpid())),
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=STDERR_FD,
        stderr=STDERR_FD,
        process_group=0,
    )
    return Child(name=name, process=process)


@dataclass(slots=True, kw_only=True)
class ChildGroup:
    """Children that end together: leaving the ``async with`` block ends them all, however it is left. A cancellation, of
    the block or of its end, leaves them no grace."""

    grace_s: float
    """Between SIGTERM and SIGKILL at the end; 0 kills."""
    members: list[Child] = field(default_factory=list)
    # Invariant: every child that was started is in it before anything else is awaited.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        grace_s = 0 if kind is not None and issubclass(kind, asyncio.CancelledError) else self.grace_s
        try:
            await asyncio.gather(*(child.stop(grace_s=grace_s) for child in self.members))
        except asyncio.CancelledError:
            await asyncio.gather(*(child.kill() for child in self.members))
            raise

    async def start(self, name: str, command: Sequence[str | os.PathLike[str]]) -> Child:
        child = await start_child(name, command)
        self.members.append(child)
        return child

    async def outlive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of some work, provided that every child lives until it is there; else raises ChildDiedError."""
        task = asyncio.create_task(work)
        watchers = {asyncio.create_task(child.wait()): child for child in self.members}
        try:
            done, _ = await asyncio.wait({task, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            first = next(watcher for watcher in watchers if watcher in done)
            raise ChildDiedError(watchers[first], first.result())
        finally:
            unfinished = [pending for pending in (task, *watchers) if not pending.done()]
            for pending in unfinished:
                pending.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

from extproc.sim.process import ReplicaProcess, ReplicaStartError
from extproc.sim.settings import Settings

Send = Callable[..., Awaitable]


async def test_replica_restarts_on_its_port_as_another_process(own_replica: Callable[..., object], send: Send) -> None:
    async with own_replica() as replica:
        port, pid = replica.port, replica.pid
        await (await send(replica)).read_to_end()
        await replica.restart()
        assert (replica.port, replica.pid != pid, await replica.log()) == (port, True, [])
        assert (await (await send(replica)).read_to_end()).end == "clean"


async def test_killed_replica_is_gone(own_replica: Callable[..., object]) -> None:
    async with own_replica() as replica:
        replica.kill()
        assert replica.returncode == -signal.SIGKILL
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", replica.port))
        replica.kill()


async def test_terminated_replica_aborts_its_streams(own_replica: Callable[..., object], send: Send) -> None:
    """CASES K8-04."""
    async with own_replica(tokens=100_000) as replica:
        exchange = await send(replica)
        await exchange.read_until(b"r1:0 ")
        replica.send_signal(signal.SIGTERM)
        await exchange.read_to_end()
        assert exchange.end == "clean"
        assert b'"finish_reason":"abort"' in exchange.body
        assert await replica.wait() == -signal.SIGTERM


async def test_replica_that_can_not_start_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        replica = ReplicaProcess(Settings(port=taken.getsockname()[1]))
        with pytest.raises(ReplicaStartError, match="Address already in use"):
            await replica.start()
    assert replica.returncode == 1


STARTER = """
import asyncio, sys, time
from extproc.sim.process import ReplicaProcess
from extproc.sim.settings import Settings
replica = ReplicaProcess(Settings())
asyncio.run(replica.start())
print(replica.pid, flush=True)
time.sleep(600)
"""


def test_replica_does_not_outlive_a_killed_starter() -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    with starter:
        pid = int(starter.stdout.readline())
        descriptor = os.pidfd_open(pid)
        starter.kill()
        assert select.select([descriptor], [], [], 30)[0] == [descriptor]
        os.close(descriptor)

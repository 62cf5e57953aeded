"""Requests that stand still, so that the next ones all go to one replica: the gateway places on the least busy one.

Without them a round's requests are spread over all replicas, and only those on the victim count. They are held in prefill for as
long as the rounds go on; a stage with ballast must be patient with replicas that make no progress.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from extproc.faults.apis import PATHS, request_body
from extproc.faults.client import Client
from extproc.faults.gateway import POLL_S, GatewayError
from extproc.faults.stage import MODEL, Stage
from extproc.sim.faults import Fault, What, Where
from extproc.sse.dialects import Dialect

LIMIT_S: Final = 30.0
_BODY: Final = request_body(Dialect.CHAT, model=MODEL, stream=True)


@dataclass(slots=True, kw_only=True)
class Ballast:
    """``each``: how many requests stand still on every replica but one."""

    stage: Stage
    each: int
    _clients: dict[str, Client] = field(default_factory=dict)
    _laid: int = 0

    async def steady(self) -> None:
        """Lay it, where it is not there or some of it has been lost. Raises GatewayError where requests are not placed."""
        if self._clients and not any(client.is_over for client in self._clients.values()):
            return
        self.drop()
        self._laid += 1
        fault = Fault(where=Where.IN_PREFILL, what=What.STALL, header="x-request-id")
        for replica in self.stage.replicas.values():
            await replica.set_faults(fault)
        for number in range(self.each * len(self.stage.replicas)):
            name = f"ballast~{self._laid}~{number}"
            headers = (("content-type", "application/json"), ("x-request-id", name))
            self._clients[name] = await Client.send(self.stage.gateway.front, PATHS[Dialect.CHAT], headers, _BODY)
        free = next(iter(self.stage.replicas))
        for name, replica_name in (await self._held()).items():
            if replica_name == free:
                self._clients.pop(name).leave()
        for replica in self.stage.replicas.values():
            await replica.reset()

    def drop(self) -> None:
        """Take it away."""
        for client in self._clients.values():
            client.leave()
        self._clients.clear()

    async def _held(self) -> dict[str, str]:
        """Which replica holds which, once all are held."""
        deadline = time.monotonic() + LIMIT_S
        held: dict[str, str] = {}
        while len(held) < len(self._clients):
            if time.monotonic() > deadline:
                log = self.stage.gateway.log.read_text()[-3000:]
                raise GatewayError(f"{len(held)} of {len(self._clients)} requests were placed:\n{log}")
            for replica, records in (await self.stage.logs()).items():
                names = (record["headers"].get("x-request-id") for record in records if record["fault"])
                held |= {name: replica for name in names if name in self._clients}
            await asyncio.sleep(POLL_S)
        return held

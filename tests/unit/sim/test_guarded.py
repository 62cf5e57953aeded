"""A replica under the lease guard, which wraps its app as it wraps vLLM's."""

import json
from collections.abc import Awaitable, Callable

from extproc.contract import headers
from extproc.contract.guard import CANCEL_PATH_FORMAT, HEARTBEAT_PATH
from extproc.sim.faults import Fault, What, Where

CHAT = {"messages": [{"role": "user", "content": "x"}], "stream": True}
TOKEN = {headers.TOKEN: "secret"}
Send = Callable[..., Awaitable]


async def test_cancelled_attempt_stops_and_frees_its_slot(
    own_replica: Callable[..., object], send: Send, eventually: Callable[..., Awaitable]
) -> None:
    stall = Fault(where=Where.AFTER_FIRST_DELTA, what=What.STALL)
    async with own_replica(guard=True, token="secret", faults=(stall,)) as replica:
        stamp = await (await send(replica, {"processor_id": "p", "leases": []}, HEARTBEAT_PATH, TOKEN)).read_to_end()
        granted = json.loads(stamp.body)
        lease = TOKEN | {
            headers.REQUEST_ID: "req_1",
            headers.ATTEMPT_ID: "att_1",
            headers.BOOT_ID: granted["boot_id"],
            headers.VALID_UNTIL_MS: str(granted["now_ms"] + 30_000),
        }
        attempt = await send(replica, CHAT, headers=lease)
        await attempt.read_until(b"r1:0 ")
        path = CANCEL_PATH_FORMAT.format(attempt_id="att_1")
        acknowledged = await (await send(replica, b"", path, TOKEN)).read_to_end()
        assert json.loads(acknowledged.body)["state"] == "stopped"
        assert (await replica.state())["running"] == 0
        assert (await attempt.read_to_end()).end == "cut"
        (record,) = await replica.log()
        assert (record["attempt_id"], record["ended"]) == ("att_1", "cancelled")


async def test_guard_refuses_a_wrong_token(own_replica: Callable[..., object], send: Send) -> None:
    async with own_replica(guard=True, token="secret") as replica:
        wrong = {headers.TOKEN: "guess"}
        refused = await (await send(replica, {"processor_id": "p", "leases": []}, HEARTBEAT_PATH, wrong)).read_to_end()
        assert refused.status in (401, 403)

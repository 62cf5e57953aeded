"""Agent-like behaviour: a call to an outside tool in the middle of an attempt (R12, R17.5)."""

import time
from typing import Final

from extproc.contract import headers
from extproc.sim.request_log import Record, ToolCall

CALL_ID: Final = "call_07"
BODY: Final = {"action": "charge", "amount": 1}
"""The same for every attempt of a request: a ledger may compare bodies, not only keys."""
TIMEOUT_S: Final = 30.0


async def call_tool(url: str, record: Record) -> None:
    """POST to the tool for this attempt's logical request; what came back goes into the record."""
    import aiohttp  # only here: a replica without a tool needs no HTTP client

    request_headers = {headers.TOOL_CALL: CALL_ID}
    if headers.REQUEST_ID in record.headers:
        request_headers[headers.REQUEST_ID] = record.headers[headers.REQUEST_ID]
    called_at = time.monotonic()
    status, text, replayed = 0, "", False
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json=BODY, headers=request_headers) as answer,
        ):
            text = await answer.text()
            status, replayed = answer.status, headers.REPLAYED in answer.headers
    except (aiohttp.ClientError, TimeoutError):
        pass
    call = ToolCall(at=called_at, call_id=CALL_ID, status=status, answer=text, replayed=replayed)
    record.tool_calls.append(call)

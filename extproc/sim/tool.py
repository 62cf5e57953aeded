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
    """POST to the tool for this attempt's logical request; the answer's status goes into the record (0: none came)."""
    import aiohttp  # only here: a replica without a tool needs no HTTP client

    request_headers = {headers.TOOL_CALL: CALL_ID}
    if headers.REQUEST_ID in record.headers:
        request_headers[headers.REQUEST_ID] = record.headers[headers.REQUEST_ID]
    called_at = time.monotonic()
    status = 0
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json=BODY, headers=request_headers) as answer,
        ):
            await answer.read()
            status = answer.status
    except (aiohttp.ClientError, TimeoutError):
        pass
    record.tool_calls.append(ToolCall(at=called_at, call_id=CALL_ID, status=status))

"""The ledger in the journal's database: one row a call, locked before it is read."""

import json
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

from extproc.decision.tool_call import CallAction, CallState, RecordedCall, decide_call
from extproc.storage.owner import Owner
from extproc.storage.script import Database, Result, Row, Script, ScriptFactory, StatementFolder, StorageUnavailable
from extproc.tools.interface import Begun, LedgerUnavailable, ListedCall, ToolAnswer, ToolCall

SQL: Final = StatementFolder(Path(str(files("extproc.tools"))) / "sql")

UNSETTLED_KEPT_MS: Final = 30 * 24 * 3_600_000
"""How long a call with an unknown outcome waits for somebody to settle it. After that nobody repeats it."""
ANSWERS_BYTES_MAX: Final = 1 << 30
"""Answers kept for repeats. Beyond it the oldest are forgotten, not their calls: a repeat is then refused, never run."""
FORGET_STEP: Final = 100
PROCESSOR_LOST: Final = "the gateway process that ran the call is gone"


class DurableLedger:
    """The ToolLedger interface over a Database, and what an operator may do to it."""

    def __init__(self, database: Database, owner: Owner, answers_bytes_max: int = ANSWERS_BYTES_MAX) -> None:
        self._database = database
        self._owner = owner
        self._answers_bytes_max = answers_bytes_max

    async def begin(self, call: ToolCall) -> Begun:
        return await self._write(partial(begin_call, self._owner, call))

    async def carried_out(self, call: ToolCall, answer: ToolAnswer | None, why: str) -> None:
        await self._write(partial(end_call, self._owner, call, CallState.CARRIED_OUT, answer, why))

    async def not_carried_out(self, call: ToolCall) -> None:
        await self._write(partial(free_call, self._owner, call))

    async def lost(self, call: ToolCall, why: str) -> None:
        await self._write(partial(end_call, self._owner, call, CallState.UNKNOWN, None, why))

    async def calls_of(self, request_id: str) -> int:
        return await self._read(partial(count_calls, request_id))

    async def calls(self, state: CallState | None, calls_max: int) -> Sequence[ListedCall]:
        """The newest calls. Raises LedgerUnavailable."""
        return await self._read(partial(list_calls, state, calls_max))

    async def settle(self, call_key: str, *, carried_out: bool, answer: ToolAnswer | None, keep_ms: int) -> bool:
        """An operator says what became of a call with an unknown outcome; False where there is no such call.

        Raises LedgerUnavailable.
        """
        return await self._write(partial(settle_call, call_key, carried_out=carried_out, answer=answer, keep_ms=keep_ms))

    async def tidy(self) -> Sequence[str]:
        """Forget what has expired; the keys of the calls that dead processes left running, now unknown.

        Raises LedgerUnavailable.
        """
        lost = await self._write(lose_calls_of_the_dead)
        while await self._write(partial(forget_answers, self._answers_bytes_max)):
            pass
        return lost

    async def _write(self, script: ScriptFactory[Result]) -> Result:
        try:
            return await self._database.write(script)
        except StorageUnavailable as error:
            raise LedgerUnavailable(str(error)) from error

    async def _read(self, script: ScriptFactory[Result]) -> Result:
        try:
            return await self._database.read(script)
        except StorageUnavailable as error:
            raise LedgerUnavailable(str(error)) from error


# --- scripts ---------------------------------------------------------------------------------------------------------------


def begin_call(owner: Owner, call: ToolCall) -> Script[Begun]:
    """Insert the call or lock the one that has its key, and decide."""
    clock = yield SQL("clock")
    now_ms = int(clock[0][0])
    while True:
        inserted = yield SQL(
            "insert_call",
            key_hash=call.key_hash,
            call_key=call.call_key,
            tool=call.tool,
            request_id=call.request_id,
            fingerprint=call.fingerprint,
            owner=owner.processor_id,
            started_at_ms=now_ms,
            expires_at_ms=now_ms + UNSETTLED_KEPT_MS,
        )
        if inserted:
            return Begun(action=CallAction.RUN)
        rows = yield SQL("lock_call", key_hash=call.key_hash)
        if not rows:  # it was freed between the two statements
            continue
        fingerprint, state, expires_at_ms, alive, status, headers, body, why = rows[0]
        if state == CallState.RUNNING and not alive:
            yield SQL("lose_call", key_hash=call.key_hash, ended_at_ms=now_ms, why=PROCESSOR_LOST)
            state, why = CallState.UNKNOWN, PROCESSOR_LOST
        elif state != CallState.RUNNING and expires_at_ms <= now_ms:
            yield SQL("delete_expired_call", key_hash=call.key_hash, expires_at_ms=expires_at_ms)
            continue
        answer = _decode_answer(status, headers, body)
        action = decide_call(
            RecordedCall(
                same_call=bytes(fingerprint) == call.fingerprint, state=CallState(state), answer_stored=answer is not None
            )
        )
        return Begun(action=action, answer=answer if action is CallAction.REPLAY else None, why=why)


def end_call(owner: Owner, call: ToolCall, state: CallState, answer: ToolAnswer | None, why: str) -> Script[None]:
    """Record how a call ended: a running one of this process, or one that was lost, by whoever has learned the truth."""
    clock = yield SQL("clock")
    now_ms = int(clock[0][0])
    kept_ms = call.keep_ms if state is CallState.CARRIED_OUT else UNSETTLED_KEPT_MS
    yield SQL(
        "end_call",
        key_hash=call.key_hash,
        owner=owner.processor_id,
        state=state,
        ended_at_ms=now_ms,
        expires_at_ms=now_ms + kept_ms,
        why=why,
        **_encode_answer(answer),
    )


def free_call(owner: Owner, call: ToolCall) -> Script[None]:
    """Forget a call that was never carried out."""
    yield SQL("free_call", key_hash=call.key_hash, owner=owner.processor_id)


def settle_call(call_key: str, *, carried_out: bool, answer: ToolAnswer | None, keep_ms: int) -> Script[bool]:
    """Whether there was such a call."""
    if not carried_out:
        rows = yield SQL("settle_not_carried_out", call_key=call_key)
        return bool(rows)
    clock = yield SQL("clock")
    rows = yield SQL(
        "settle_carried_out",
        call_key=call_key,
        expires_at_ms=int(clock[0][0]) + keep_ms,
        why="settled",
        **_encode_answer(answer),
    )
    return bool(rows)


def count_calls(request_id: str) -> Script[int]:
    """How many calls name the request."""
    rows = yield SQL("count_calls", request_id=request_id)
    return int(rows[0][0])


def list_calls(state: CallState | None, calls_max: int) -> Script[tuple[ListedCall, ...]]:
    """The newest calls."""
    rows = yield SQL("select_calls", state=state, rows_max=calls_max)
    return tuple(_listed(row) for row in rows)


def lose_calls_of_the_dead() -> Script[tuple[str, ...]]:
    """Mark what dead processes left running, and delete what has expired."""
    rows = yield SQL("lose_calls_of_the_dead", why=PROCESSOR_LOST)
    yield SQL("delete_expired_calls")
    return tuple(str(row[0]) for row in rows)


def forget_answers(bytes_max: int) -> Script[bool]:
    """Whether some answers had to go."""
    rows = yield SQL("answer_bytes")
    if int(rows[0][0]) <= bytes_max:
        return False
    yield SQL("forget_answers", rows_max=FORGET_STEP)
    return True


def _encode_answer(answer: ToolAnswer | None) -> dict[str, str | int | bytes | None]:
    if answer is None:
        return {"status": None, "headers": None, "body": None}
    return {"status": answer.status, "headers": json.dumps(answer.headers), "body": answer.body}


def _decode_answer(status: int | None, headers: str | None, body: bytes | None) -> ToolAnswer | None:
    if status is None or headers is None or body is None:
        return None
    pairs = tuple((str(name), str(value)) for name, value in json.loads(headers))
    return ToolAnswer(status=status, headers=pairs, body=bytes(body))


def _listed(row: Row) -> ListedCall:
    call_key, tool, request_id, state, started_at_ms, ended_at_ms, why, status, answer_bytes = row
    return ListedCall(
        call_key=call_key,
        tool=tool,
        request_id=request_id,
        state=CallState(state),
        started_at_ms=started_at_ms,
        ended_at_ms=ended_at_ms,
        why=why,
        status=status,
        answer_bytes=answer_bytes,
    )

"""One call on its way to a tool, in a task of its own: it goes on when its caller is gone.

1. The call is on record as running before its first byte goes out.
2. A whole answer is stored before its last byte goes to the caller; an event stream is handed on as it comes and its end is held
   back until the answer is stored. A ledger that fails between the two delays nothing: the answer goes out, storing it is tried
   on, and until then repeats are told that the call is in progress.
3. Whoever called may leave at any time. The tool is not told: what it has begun it carries out, and the answer is there for the
   attempt that comes after (R12). A call that was not sent yet is not sent any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from extproc.contract import headers as names
from extproc.contract.errors import FORMS, ErrorCode
from extproc.decision.tool_call import REFUSALS, CallAction, Proof, read_answer
from extproc.processor import tool_answers
from extproc.processor.tool_audience import Audience
from extproc.processor.tool_exchange import ExchangeOver, HeadArrived, PieceArrived, ToolExchange
from extproc.processor.tool_request import ToolRequest
from extproc.replicas.attempt_client import AttemptClient, ResponseHead
from extproc.tools.interface import LedgerUnavailable, ToolAnswer, ToolCall, ToolLedger

NEVER_SENT_FLAGS: Final = frozenset({"UF", "UH", "NC", "NR", "UO"})
"""Envoy's own answer says: no connection to the tool was made, or none was free, so it has seen nothing (FACTS C13)."""
POLL_S: Final = (0.02, 0.5)
"""How often a waiting call looks whether the first one has ended: from, and doubling up to."""
RECORD_TRIES_MAX: Final = 120
RECORD_RETRY_S: Final = 1.0

_log = logging.getLogger(__name__)


class ToolBroke(Exception):  # noqa: N818  (an event, not a fault)
    """The answer broke off after its head was handed on: the caller's stream must be cut."""


class ToolRun:
    """Serves one request to a tool. ``serve`` raises ToolBroke."""

    def __init__(self, *, request: ToolRequest, attempts: AttemptClient, ledger: ToolLedger, audience: Audience) -> None:
        self._request = request
        self._attempts = attempts
        self._ledger = ledger
        self._audience = audience
        self._name = request.call.call_key if request.call is not None else request.route.name
        self.unrecorded: Callable[[], Awaitable[None]] | None = None
        """What the ledger could not take; the answer went out all the same."""

    async def serve(self) -> None:
        """From the look into the ledger to the end of the answer."""
        call = self._request.call
        if call is None:
            await self._relay()
            return
        try:
            await self._serve_call(call)
        except LedgerUnavailable as error:
            _log.warning("%s is not sent to its tool: %s", self._name, error)
            await self._refuse(ErrorCode.JOURNAL_UNAVAILABLE, None)

    # --- the ledger's word ---

    async def _serve_call(self, call: ToolCall) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._request.route.wait_ms / 1000
        pause_s, longest_s = POLL_S
        asked = False
        while True:
            begun = await self._ledger.begin(call)
            if begun.action is CallAction.RUN:
                await self._run(call)
                return
            if begun.answer is not None:
                headers, body = tool_answers.replayed(self._request, begun.answer)
                await self._audience.answer(begun.answer.status, headers, body, outcome="replayed")
                return
            if begun.action is CallAction.WAIT and self._audience.present and loop.time() < until:
                await asyncio.sleep(min(pause_s, max(0.0, until - loop.time())))
                pause_s = min(2 * pause_s, longest_s)
                continue
            if begun.action is CallAction.REFUSE_UNKNOWN and self._request.route.status_path is not None and not asked:
                asked = True
                if await self._ask(call):
                    continue
            await self._refuse(REFUSALS[begun.action], begun.why)
            return

    async def _ask(self, call: ToolCall) -> bool:
        """Ask the tool itself what became of a call; whether it knew."""
        exchange = ToolExchange(expects_body=True)
        try:
            async with asyncio.timeout(self._request.route.wait_ms / 1000 + 1):
                await exchange.open(self._attempts, self._request.status_question())
                answer, head, broken = await self._collect(exchange)
        except (OSError, TimeoutError) as error:
            _log.warning("the tool of %s was not reached for its status: %s", call.call_key, error)
            return False
        finally:
            exchange.close()
        if head is None or broken is not None or head.get(names.EGRESS_FLAGS) is not None:
            return False
        if head.status == 200:
            await self._ledger.carried_out(call, answer, "the tool's own status answer")
            return True
        if head.status == 404:
            await self._ledger.not_carried_out(call)
            return True
        return False

    async def _collect(self, exchange: ToolExchange) -> tuple[ToolAnswer | None, ResponseHead | None, str | None]:
        """A whole answer, or None where it is too long to be kept; its head; how it broke."""
        head: ResponseHead | None = None
        body = bytearray()
        while True:
            match await exchange.next():
                case HeadArrived(arrived):
                    head = arrived
                case PieceArrived(data):
                    body += data if len(body) <= self._request.route.answer_bytes_max else b""
                case ExchangeOver(broken):
                    fits = head is not None and len(body) <= self._request.route.answer_bytes_max
                    answer = tool_answers.kept_answer(self._request, head, bytes(body)) if head is not None and fits else None
                    return answer, head, broken

    # --- the tool ---

    async def _run(self, call: ToolCall) -> None:
        if not self._audience.present:
            await self._ledger.not_carried_out(call)
            return
        exchange = ToolExchange(expects_body=True)
        deadline_ms = self._request.route.deadline_ms
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await self._exchange(call, exchange)
        except TimeoutError:
            await self._lose(call, f"no whole answer within {deadline_ms} ms")
        except ToolBroke:
            raise
        except BaseException as error:
            # Stopped with its process, or broken by a mistake of ours: the row says so and waits to be settled.
            await asyncio.shield(self._give_up(call, f"the gateway gave up on it: {error!r}"))
            raise
        finally:
            exchange.close()

    async def _exchange(self, call: ToolCall, exchange: ToolExchange) -> None:
        try:
            await exchange.open(self._attempts, self._request.to_tool())
        except OSError as error:
            await self._free(call, f"the egress listener can't be reached: {error}")
            return
        first = await exchange.next()
        if not isinstance(first, HeadArrived):
            assert isinstance(first, ExchangeOver), "a body without a head"
            await self._lose(call, first.broken or "the tool answered nothing")
            return
        head = first.head
        flags = head.get(names.EGRESS_FLAGS)
        if flags is None:
            await self._take_answer(call, exchange, head)
        elif set(flags.split(",")) <= NEVER_SENT_FLAGS:
            await self._free(call, f"Envoy answered {head.status} with flags {flags}")
        else:
            await self._lose(call, f"Envoy answered {head.status} with flags {flags}")

    async def _take_answer(self, call: ToolCall, exchange: ToolExchange, head: ResponseHead) -> None:
        """Hold the answer until it is stored, or hand it on and hold its end. What is too long to be kept is handed on."""
        kept: bytearray | None = bytearray()
        handing_on = tool_answers.is_event_stream(head)
        if handing_on:
            await self._audience.begin(head.status, tool_answers.handed_on(head))
        while True:
            signal = await exchange.next()
            if isinstance(signal, ExchangeOver):
                break
            assert isinstance(signal, PieceArrived), "a second head"
            held = kept
            if kept is not None:
                kept += signal.data
                if len(kept) > self._request.route.answer_bytes_max:
                    kept = None
            if handing_on:
                await self._audience.write(signal.data)
            elif kept is None and held is not None:
                handing_on = True
                await self._audience.begin(head.status, tool_answers.handed_on(head))
                await self._audience.write(bytes(held))
        if signal.broken is not None:
            await self._lose(call, signal.broken)
            return
        await self._record(self._proved(call, head, kept))
        if handing_on:
            await self._audience.end()
        else:
            assert kept is not None
            await self._audience.answer(head.status, tool_answers.handed_on(head), bytes(kept), outcome="answered")

    def _proved(self, call: ToolCall, head: ResponseHead, body: bytearray | None) -> Callable[[], Awaitable[None]]:
        """What is to be recorded of a whole answer."""
        match read_answer(head.status, head.get(names.OUTCOME)):
            case Proof.NOT_CARRIED_OUT:
                return partial(self._ledger.not_carried_out, call)
            case Proof.UNKNOWN:
                return partial(self._ledger.lost, call, f"the tool answered {head.status}")
            case Proof.CARRIED_OUT:
                if body is None:
                    return partial(self._ledger.carried_out, call, None, "its answer was too long to be kept")
                answer = tool_answers.kept_answer(self._request, head, bytes(body))
                if answer is None:
                    return partial(self._ledger.lost, call, "the event stream ended without the call's response")
                return partial(self._ledger.carried_out, call, answer, f"the tool answered {head.status}")

    async def _record(self, write: Callable[[], Awaitable[None]]) -> None:
        try:
            await write()
        except LedgerUnavailable as error:
            _log.error("the end of %s is not recorded yet: %s", self._name, error)
            self.unrecorded = write

    async def record_later(self) -> None:
        """Try on to record what the ledger could not take when it happened."""
        for _ in range(RECORD_TRIES_MAX):
            if self.unrecorded is None:
                return
            await asyncio.sleep(RECORD_RETRY_S)
            write, self.unrecorded = self.unrecorded, None
            await self._record(write)
        _log.error("the end of %s was never recorded; it counts as running until this process ends", self._name)

    async def _free(self, call: ToolCall, why: str) -> None:
        await self._record(partial(self._ledger.not_carried_out, call))
        await self._refuse(ErrorCode.TOOL_UNREACHABLE, why)

    async def _lose(self, call: ToolCall, why: str) -> None:
        await self._record(partial(self._ledger.lost, call, why))
        if self._audience.begun:
            raise ToolBroke(why)
        await self._refuse(ErrorCode.OUTCOME_UNKNOWN, why, status=502)

    async def _give_up(self, call: ToolCall, why: str) -> None:
        await self._record(partial(self._ledger.lost, call, why))
        if not self._audience.begun:
            await self._refuse(ErrorCode.OUTCOME_UNKNOWN, why, status=502)

    async def _refuse(self, code: ErrorCode, detail: str | None, status: int | None = None) -> None:
        headers, body = tool_answers.refused(code, self._request, detail)
        await self._audience.answer(status or FORMS[code].status, headers, body, outcome=str(code))

    # --- what wants no protection ---

    async def _relay(self) -> None:
        """Hand the request and its answer on as they come; whoever serves this cancels it when the caller leaves."""
        exchange = ToolExchange(expects_body=self._request.head.method != "HEAD")
        try:
            await exchange.open(self._attempts, self._request.to_tool())
            await self._relay_answer(exchange)
        except OSError as error:
            await self._refuse(ErrorCode.TOOL_UNREACHABLE, f"the egress listener can't be reached: {error}")
        finally:
            exchange.close()

    async def _relay_answer(self, exchange: ToolExchange) -> None:
        while True:
            match await exchange.next():
                case HeadArrived(head) if (flags := head.get(names.EGRESS_FLAGS)) is not None:
                    await self._refuse(ErrorCode.TOOL_UNREACHABLE, f"Envoy answered {head.status} with flags {flags}")
                    return
                case HeadArrived(head):
                    await self._audience.begin(head.status, tool_answers.handed_on(head))
                case PieceArrived(data):
                    await self._audience.write(data)
                case ExchangeOver(None):
                    await self._audience.end()
                    return
                case ExchangeOver(broken):
                    if self._audience.begun:
                        raise ToolBroke(broken)
                    await self._refuse(ErrorCode.TOOL_UNREACHABLE, broken, status=502)
                    return

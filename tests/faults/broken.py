"""``python broken.py NAME PROCESSOR OPTIONS``: a processor with one promise broken on purpose, for the checker to catch.

Each breaks what it is named for in the running product, as a wrong line of code would; ``BUILDS`` says which promise that is.
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from extproc.app.processor_command import processor
from extproc.contract.errors import ErrorCode
from extproc.decision import gates, request
from extproc.decision.effects import AnswerError, Outcome, RecordOutcome
from extproc.decision.events import AnswerFinished, AttemptFailed, BoundaryRecorded
from extproc.faults.invariants import Invariant
from extproc.journal.records import EventKind
from extproc.processor import attempt, carrier, client_stream, intake, record, speaker, tool_service, wording
from extproc.replicas import fencing


def end_without_a_word() -> None:
    """The stream of a broken answer ends as if it were whole."""

    async def interrupt(self: Any, effect: Any) -> None:
        await self._client.end(b"", self._metadata())

    speaker.Speaker.interrupt = interrupt


def say_it_twice() -> None:
    original = speaker.Speaker._terminal
    speaker.Speaker._terminal = lambda self, error: 2 * original(self, error)


def complain_after_the_finish() -> None:
    async def finish(self: Any) -> None:
        effect = AnswerError(code=ErrorCode.INTERNAL_ERROR, reason="a late thought", detail="too late")
        error = wording.refused_error(effect, request_id=self._record.request_id, attempts=self.attempts)
        await self._client.end(self._last + self._terminal(error), self._metadata())

    speaker.Speaker.finish = finish


def repeat_after_delivery() -> None:
    """The table's decode row is the prefill row: a broken answer is started again, and its text follows the first one's.

    Its prompt must be kept for that, since a stream lets go of it at the boundary.
    """
    intake.RequestBody.release = lambda self: None
    request.TABLE[request.Phase.DECODE][AttemptFailed] = request.TABLE[request.Phase.PREFILL][AttemptFailed]


def rewrite_the_text() -> None:
    original = client_stream.ClientStream.write

    async def write(self: Any, data: bytes) -> None:
        await original(self, data.replace(b"replica-", b"anybody-"))

    client_stream.ClientStream.write = write


def never_stop_repeating() -> None:
    gates.GATES[gates.Gate.ATTEMPTS_LEFT] = lambda attempted, policy, facts: None


def never_repeat() -> None:
    allowed = gates.GATES[gates.Gate.ATTEMPTS_LEFT]
    gates.GATES[gates.Gate.ATTEMPTS_LEFT] = lambda attempted, policy, facts: allowed(
        replace(attempted, attempts=99), policy, facts
    )


def fence_by_assumption() -> None:
    """A cancel is taken for acknowledged before it was sent, and the connection is left as it is."""

    async def fence(self: Any, *_: Any) -> str:
        return "cancel_acknowledged"

    fencing.GuardedFence.fence = fence
    attempt.Attempt.close = lambda self: None


def forget_who_left() -> None:
    """A client that leaves is written down, and its attempt is left running with its lease renewed."""
    leave = carrier.Carrier.leave
    carrier.Carrier.leave = lambda self, gone: leave(self, tuple(effect for effect in gone if isinstance(effect, RecordOutcome)))
    carrier.Carrier.close = lambda self: None


def count_one_more() -> None:
    original = wording.interrupted_error
    wording.interrupted_error = lambda effect, *, tokens, **more: original(effect, tokens=tokens + 1, **more)


def claim_a_delivery_in_an_error() -> None:
    original = wording.refused_error
    wording.refused_error = lambda effect, **more: replace(original(effect, **more), partial_output=True)


def deliver_unrecorded() -> None:
    async def record_boundary(self: Any) -> BoundaryRecorded:
        return BoundaryRecorded()

    carrier.Carrier._record_boundary = record_boundary


def record_what_was_delivered() -> None:
    """Write-behind: the boundary is crossed first.

    By the record's date a minute earlier, so that it is late however long the client's process stalls before it reads the delta.
    """
    original = carrier.Carrier._record_boundary
    behind: set[asyncio.Task[Any]] = set()

    async def record_boundary(self: Any) -> BoundaryRecorded:
        now_ms = self._record._wall_ms
        self._record._wall_ms = lambda: now_ms() + 60_000
        behind.add(asyncio.create_task(original(self)))
        return BoundaryRecorded()

    carrier.Carrier._record_boundary = record_boundary


def write_down_a_success() -> None:
    original = speaker.Speaker.record_outcome
    speaker.Speaker.record_outcome = lambda self, effect: original(self, replace(effect, outcome=Outcome.COMPLETED))


def leave_the_proof_out() -> None:
    original = record.RequestRecord.note

    def note(self: Any, kind: EventKind, **more: Any) -> None:
        if kind is not EventKind.FENCED:
            original(self, kind, **more)

    record.RequestRecord.note = note


def log_a_success() -> None:
    original = speaker.Speaker._metadata

    def metadata(self: Any, phase: str = "ended") -> dict[str, Any]:
        said = dict(original(self, phase))
        return said | {"outcome": "completed"} if phase == "ended" else said

    speaker.Speaker._metadata = metadata


def leave_the_ledger_out() -> None:
    original = tool_service.read_tool_request
    tool_service.read_tool_request = lambda *arguments: replace(original(*arguments), call=None)


def take_any_end_for_a_finish() -> None:
    """An answer that breaks off counts as whole."""

    def finish(state: Any, event: Any, policy: Any) -> Any:
        return request.step(state, AnswerFinished(), policy)

    request.TABLE[request.Phase.DECODE][AttemptFailed] = finish


BREAK_BEFORE: Final = "reset.chat.stream.after_role.1"
BREAK_AFTER: Final = "reset.chat.stream.mid_decode-3.1"
BREAK_BOTH: Final = "reset.chat.stream.after_role.2"
HUNG: Final = "engine_hung.chat.stream.after_role.1"
LEFT: Final = "client_closed.chat.stream.mid_decode-2.1"
TOOL: Final = "reset.chat.stream.after_tool.1"
NOTHING: Final = "nothing.chat.stream.before_headers.1"

BUILDS: Final[dict[Callable[[], None], tuple[str, frozenset[Invariant]]]] = {
    end_without_a_word: (BREAK_AFTER, frozenset({Invariant.ONE_ENDING})),
    say_it_twice: (BREAK_AFTER, frozenset({Invariant.ONE_ENDING})),
    complain_after_the_finish: (NOTHING, frozenset({Invariant.ONE_ENDING})),
    take_any_end_for_a_finish: (BREAK_AFTER, frozenset({Invariant.ONE_ENDING})),
    repeat_after_delivery: (BREAK_AFTER, frozenset({Invariant.ONE_VOICE, Invariant.NO_ATTEMPT_AFTER_DELIVERY})),
    rewrite_the_text: (NOTHING, frozenset({Invariant.ONLY_WHAT_WAS_PUBLISHED})),
    never_stop_repeating: (BREAK_BOTH, frozenset({Invariant.ATTEMPTS_BOUNDED})),
    never_repeat: (BREAK_BEFORE, frozenset({Invariant.EXPECTED_ENDING})),
    fence_by_assumption: (HUNG, frozenset({Invariant.ONE_PUBLISHER})),
    forget_who_left: (LEFT, frozenset({Invariant.STOPPED_IN_TIME, Invariant.NO_SLOT_LEFT})),
    count_one_more: (BREAK_AFTER, frozenset({Invariant.TERMINAL_EVENT_IS_TRUE})),
    claim_a_delivery_in_an_error: (BREAK_BOTH, frozenset({Invariant.REFUSAL_IS_TRUE})),
    deliver_unrecorded: (NOTHING, frozenset({Invariant.RECORDED_BEFORE_DELIVERED})),
    record_what_was_delivered: (NOTHING, frozenset({Invariant.RECORDED_BEFORE_DELIVERED})),
    write_down_a_success: (BREAK_AFTER, frozenset({Invariant.JOURNAL_AGREES})),
    leave_the_proof_out: (BREAK_BEFORE, frozenset({Invariant.JOURNAL_KEEPS_ITS_RULES})),
    log_a_success: (BREAK_AFTER, frozenset({Invariant.ACCESS_LOGS_AGREE})),
    leave_the_ledger_out: (TOOL, frozenset({Invariant.TOOL_ACTS_ONCE})),
}
"""Each build with a fault point at which it shows, and the promises whose rules must say so."""

if __name__ == "__main__":
    {build.__name__: build for build in BUILDS}[sys.argv.pop(1)]()
    processor(prog_name="deltafence processor")

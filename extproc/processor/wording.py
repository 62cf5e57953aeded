"""What a client is told, in words and fields (R9, DESIGN section 6). One place, so that every ending speaks alike."""

from collections.abc import Sequence
from typing import Final

from extproc.contract import headers as names
from extproc.contract.errors import FORMS, ClientError, ErrorCode
from extproc.decision.effects import AnswerError, InterruptStream

MESSAGES: Final[dict[ErrorCode, str]] = {
    ErrorCode.ATTEMPTS_EXHAUSTED: "No replica finished this request. Nothing of an answer was delivered.",
    ErrorCode.NO_HEALTHY_REPLICA: "No healthy replica can take this request now. Nothing of an answer was delivered.",
    ErrorCode.RETRY_BUDGET_EXHAUSTED: "A replica failed, and too many requests are being repeated already.",
    ErrorCode.REPLAY_COST_EXCEEDED: "A replica failed, and repeating this request would cost more than its route allows.",
    ErrorCode.SOURCE_ATTEMPT_NOT_FENCED: "A replica went silent and may still be working on this request; it was not repeated.",
    ErrorCode.TOOL_SIDE_EFFECTS_POSSIBLE: "A replica failed after a tool call; repeating the request could repeat the action.",
    ErrorCode.FIRST_DELTA_DEADLINE_EXCEEDED: "The first token did not come within the route's deadline.",
    ErrorCode.OVERLOADED: "The replicas are overloaded.",
    ErrorCode.DRAINING: "This gateway is shutting down.",
    ErrorCode.JOURNAL_UNAVAILABLE: "The request journal is unavailable, so no answer was begun.",
    ErrorCode.INVALID_REQUEST_BODY: "The replica refuses this request.",
    ErrorCode.RESPONSE_TOO_LARGE: "The replica's answer is larger than this gateway may hold.",
    ErrorCode.INTERNAL_ERROR: "The gateway broke one of its own rules and ended the request.",
}


def refused_error(effect: AnswerError, *, request_id: str, attempts: int) -> ClientError:
    """Before the boundary: nothing was delivered."""
    return ClientError(
        code=effect.code,
        message=f"{MESSAGES[effect.code]} ({effect.detail})",
        request_id=request_id,
        partial_output=False,
        delivered_output_tokens=0,
        reason=effect.reason,
        attempts=attempts,
        upstream_error=effect.upstream_error,
    )


def interrupted_error(effect: InterruptStream, *, request_id: str, attempts: int, tokens: int, token_source: str) -> ClientError:
    """After the boundary: the answer is partial, and the gateway does not repeat it."""
    return ClientError(
        code=ErrorCode.UPSTREAM_DECODE_INTERRUPTED,
        message=(
            f"The answer broke off after {tokens} output tokens were delivered ({effect.detail}). "
            "It is partial and was not repeated."
        ),
        request_id=request_id,
        partial_output=True,
        delivered_output_tokens=tokens,
        token_count_source=token_source,
        reason=effect.reason,
        attempts=attempts,
        upstream_error=effect.upstream_error,
    )


def identity_headers(request_id: str, attempts: int) -> list[tuple[str, str]]:
    """On every answer."""
    return [(names.REQUEST_ID, request_id), (names.ATTEMPTS, str(attempts))]


def error_headers(error: ClientError, retry_after_s: int | None) -> list[tuple[str, str]]:
    """On an answer that is an error: no SDK repeats by itself what the processor has already repeated (CASES ID-03)."""
    form = FORMS[error.code]
    after_s = retry_after_s if retry_after_s is not None else form.retry_after_s
    headers = [("content-type", "application/json"), *identity_headers(error.request_id, error.attempts)]
    if after_s is not None:
        headers.append(("retry-after", str(after_s)))
    headers.append((names.SHOULD_RETRY, "true" if form.should_retry and error.attempts == 0 else "false"))
    return headers


_NOT_HANDED_ON: Final = names.HOP_BY_HOP | {"content-length", "server"}


def answer_headers(upstream: Sequence[tuple[str, str]], request_id: str, attempts: int) -> list[tuple[str, str]]:
    """A replica's response headers as the client gets them: nothing of ours, Envoy's or between two neighbours.

    Envoy keeps only the last of a name given twice in a StreamedImmediateResponse, so repeated ones are joined (RFC 9110 section
    5.3). ``set-cookie`` may not be joined (RFC 6265 section 3): of several the last one arrives.
    """
    kept: dict[str, str] = {}
    for name, value in upstream:
        if name in _NOT_HANDED_ON or name.startswith(names.STRIPPED_FROM_CLIENTS):
            continue
        kept[name] = f"{kept[name]}, {value}" if name in kept and name != "set-cookie" else value
    return [*kept.items(), *identity_headers(request_id, attempts)]

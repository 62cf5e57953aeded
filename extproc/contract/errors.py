"""Error codes that a client can see, and the HTTP status of each (DESIGN section 6, R9).

``retryable`` is always false towards the gateway's own policy: the gateway has spent what it may spend (R10). The client may
still offer its user a new request; ``retry_after_s`` says when that makes sense.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ErrorCode(StrEnum):
    """One word per way in which a request can end without its answer."""

    UPSTREAM_DECODE_INTERRUPTED = "upstream_decode_interrupted"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    NO_HEALTHY_REPLICA = "no_healthy_replica"
    RETRY_BUDGET_EXHAUSTED = "retry_budget_exhausted"
    REPLAY_COST_EXCEEDED = "replay_cost_exceeded"
    SOURCE_ATTEMPT_NOT_FENCED = "source_attempt_not_fenced"
    TOOL_SIDE_EFFECTS_POSSIBLE = "tool_side_effects_possible"
    FIRST_DELTA_DEADLINE_EXCEEDED = "first_delta_deadline_exceeded"
    OVERLOADED = "overloaded"
    DRAINING = "draining"
    JOURNAL_UNAVAILABLE = "journal_unavailable"
    REQUEST_IN_PROGRESS = "request_in_progress"
    PARTIAL_OUTPUT_EXISTS = "partial_output_exists"
    REQUEST_COMPLETED = "request_completed"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    INVALID_IDEMPOTENCY_KEY = "invalid_idempotency_key"
    IDEMPOTENCY_KEY_REQUIRED = "idempotency_key_required"
    OUTCOME_UNKNOWN = "outcome_unknown"
    TOOL_UNREACHABLE = "tool_unreachable"
    REQUEST_TOO_LARGE = "request_too_large"
    RESPONSE_TOO_LARGE = "response_too_large"
    INVALID_REQUEST_BODY = "invalid_request_body"
    UNSUPPORTED_CONTENT_ENCODING = "unsupported_content_encoding"
    INTERNAL_ERROR = "internal_error"


class EnvoyCode(StrEnum):
    """What Envoy says where there is no processor to say anything (envoy/envoy.yaml.j2)."""

    PROCESSOR_UNAVAILABLE = "processor_unavailable"
    PROCESSOR_BYPASSED = "processor_bypassed"
    REQUEST_TIMEOUT = "request_timeout"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How a code is said: status before the boundary, and whether SDKs may repeat by themselves."""

    status: int
    retry_after_s: int | None = None

    @property
    def should_retry(self) -> bool:
        """Whether an SDK's own retry may be left switched on: only where waiting helps and no attempt was spent in vain."""
        return self.retry_after_s is not None


FORMS: Final[dict[ErrorCode, ErrorForm]] = {
    # Its status matters only for answers held whole, which are never partial; streams carry it in the terminal event.
    ErrorCode.UPSTREAM_DECODE_INTERRUPTED: ErrorForm(502),
    ErrorCode.ATTEMPTS_EXHAUSTED: ErrorForm(502),
    ErrorCode.NO_HEALTHY_REPLICA: ErrorForm(503, retry_after_s=5),
    ErrorCode.RETRY_BUDGET_EXHAUSTED: ErrorForm(503, retry_after_s=5),
    ErrorCode.REPLAY_COST_EXCEEDED: ErrorForm(503, retry_after_s=30),
    ErrorCode.SOURCE_ATTEMPT_NOT_FENCED: ErrorForm(503, retry_after_s=30),
    ErrorCode.TOOL_SIDE_EFFECTS_POSSIBLE: ErrorForm(502),
    ErrorCode.FIRST_DELTA_DEADLINE_EXCEEDED: ErrorForm(504),
    ErrorCode.OVERLOADED: ErrorForm(503, retry_after_s=5),
    ErrorCode.DRAINING: ErrorForm(503, retry_after_s=1),
    ErrorCode.JOURNAL_UNAVAILABLE: ErrorForm(503, retry_after_s=5),
    ErrorCode.REQUEST_IN_PROGRESS: ErrorForm(409),
    ErrorCode.PARTIAL_OUTPUT_EXISTS: ErrorForm(409),
    ErrorCode.REQUEST_COMPLETED: ErrorForm(409),
    ErrorCode.IDEMPOTENCY_KEY_REUSED: ErrorForm(422),
    ErrorCode.INVALID_IDEMPOTENCY_KEY: ErrorForm(400),
    ErrorCode.IDEMPOTENCY_KEY_REQUIRED: ErrorForm(400),
    ErrorCode.OUTCOME_UNKNOWN: ErrorForm(409),
    ErrorCode.TOOL_UNREACHABLE: ErrorForm(503, retry_after_s=1),
    ErrorCode.REQUEST_TOO_LARGE: ErrorForm(413),
    ErrorCode.RESPONSE_TOO_LARGE: ErrorForm(502),
    ErrorCode.INVALID_REQUEST_BODY: ErrorForm(400),
    ErrorCode.UNSUPPORTED_CONTENT_ENCODING: ErrorForm(415),
    ErrorCode.INTERNAL_ERROR: ErrorForm(500),
}


ENVOY_FORMS: Final[dict[EnvoyCode, ErrorForm]] = {
    EnvoyCode.PROCESSOR_UNAVAILABLE: ErrorForm(503, retry_after_s=1),
    EnvoyCode.PROCESSOR_BYPASSED: ErrorForm(503),
    EnvoyCode.REQUEST_TIMEOUT: ErrorForm(408),
    EnvoyCode.NOT_FOUND: ErrorForm(404),
}
"""Besides these, Envoy says ``overloaded`` and ``no_healthy_replica``, which mean what they mean from a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientError:
    """What a client is told, before the boundary as a JSON body, after it inside the terminal event (R9)."""

    code: ErrorCode
    message: str
    request_id: str
    partial_output: bool
    delivered_output_tokens: int
    reason: str
    attempts: int
    token_count_source: str = "counted"  # noqa: S105  ("usage" where the stream itself said so)
    upstream_error: dict[str, str | int | None] | None = None

    def fields(self) -> dict[str, object]:
        """The error object's fields, in the order in which people read them."""
        fields: dict[str, object] = {
            "message": self.message,
            "type": "upstream_error" if FORMS[self.code].status >= 500 else "invalid_request_error",
            "param": None,
            "code": str(self.code),
            "request_id": self.request_id,
            "partial_output": self.partial_output,
            "delivered_output_tokens": self.delivered_output_tokens,
            "delivered_output_tokens_source": self.token_count_source,
            "retryable": False,
            "reason": self.reason,
            "attempts": self.attempts,
        }
        if self.upstream_error is not None:
            fields["upstream_error"] = self.upstream_error
        return fields

"""Header names on every wire, and which of them a client may not set.

Lower case, as HTTP/2 and Envoy write them.
"""

from typing import Final

PREFIX: Final = "x-deltafence-"
"""Every header of ours; the front listener and the processor strip what a client sends under it."""

REQUEST_ID: Final = "x-deltafence-request-id"
"""The client's logical request, ``req_<ULID>``; on answers and on attempts (R11)."""
ATTEMPTS: Final = "x-deltafence-attempts"
"""On answers: how many attempts were started."""
ATTEMPT_ID: Final = "x-deltafence-attempt-id"
"""On attempts: ``att_<ULID>`` (R6)."""
BOOT_ID: Final = "x-deltafence-boot-id"
"""On attempts: the guard process that granted the stamp which the lease counts from. On a guard's answers: its own."""
NOW_MS: Final = "x-deltafence-now-ms"
"""On a guard's answers to attempts: the worker's monotonic clock, milliseconds; with the boot id it makes a stamp."""
VALID_UNTIL_MS: Final = "x-deltafence-valid-until-ms"
"""On attempts: the lease's end on the worker's monotonic clock, milliseconds."""
TOKEN: Final = "x-deltafence-token"  # noqa: S105  (a header's name, not a secret)
"""On attempts and guard calls: the shared secret."""
REFUSAL: Final = "x-deltafence-refusal"
"""On a guard's 409: which refusal (contract.guard.GuardRefusal); a replica's own 409 has no such header."""
POLICY: Final = "x-deltafence-policy"
"""ext_proc initial metadata: a route's policy document (ExtProcPerRoute override)."""
TOOL_CALL: Final = "x-deltafence-tool-call"
"""On tool calls: the call's id within the logical request (R12)."""
REPLAYED: Final = "x-deltafence-replayed"
"""On tool answers: ``true`` where the ledger gave a stored answer."""
TOOL: Final = "x-deltafence-tool"
"""ext_proc initial metadata: what the operator said about a tool's route. On calls towards the egress: the tool's name."""
OUTCOME: Final = "x-deltafence-outcome"
"""From a tool: ``carried_out``, ``not_carried_out`` or ``unknown``, where its status does not say it."""

DESTINATION: Final = "x-gateway-destination-endpoint"
"""On attempts: ``host:port`` of the chosen replica, read by Envoy's override_host policy."""
SERVED_BY: Final = "x-served-by"
"""From the egress listener: the address that really answered; override_host falls back silently, so it is compared."""
EGRESS_FLAGS: Final = "x-egress-flags"
"""From the egress listener, on its local replies: Envoy's response flags (UF, UH, UC, ...)."""
EGRESS_DETAILS: Final = "x-egress-details"
"""From the egress listener, on its local replies: Envoy's response code details."""

SHOULD_RETRY: Final = "x-should-retry"
"""Read by the OpenAI and Anthropic SDKs: ``false`` where the processor has already spent the retries (CASES ID-03)."""
IDEMPOTENCY_KEY: Final = "idempotency-key"

STRIPPED_FROM_CLIENTS: Final = (PREFIX, "x-envoy-", DESTINATION, SERVED_BY, "x-egress-")
"""Prefixes of request headers that a client may not send on."""

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
        "expect",
    }
)
"""RFC 9110 section 7.6.1 and the headers that only mean something between two neighbours."""

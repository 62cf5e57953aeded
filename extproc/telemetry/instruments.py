"""Every metric of a processor, in one table. docs/metrics.md is made of it, and dashboards and alerts are tested against it.

Names follow OpenTelemetry. Where its semantic conventions for generative AI have a metric of that meaning, theirs is used
("server" there: whoever answers the client, repeats included). Prometheus sees underscores, the unit, and ``_total``.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes


class Kind(StrEnum):
    """How a metric counts."""

    COUNTER = "counter"
    UP_DOWN_COUNTER = "up-down counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instrument:
    """One metric. ``labels`` are its attributes; ``buckets`` are upper bounds in the metric's unit.

    It is equal to itself only, which makes it a cheap key.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name in a scrape; a histogram's series add ``_bucket``, ``_sum`` and ``_count``."""
        name = self.name.replace(".", "_")
        if self.unit == "s":
            name += "_seconds"
        return name + "_total" if self.kind is Kind.COUNTER else name


OPERATION: Final = gen_ai.GEN_AI_OPERATION_NAME
MODEL: Final = gen_ai.GEN_AI_REQUEST_MODEL
ERROR: Final = error_attributes.ERROR_TYPE

# From a cached prompt to a prefill of minutes: the wait for a first token spans four orders of magnitude.
_FIRST_TOKEN_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_REQUEST_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 3600.0)
# A refused cancel call takes a millisecond; a lease of the default length runs out after ten seconds.
_FENCE_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0)

REQUESTS: Final = Instrument(
    name="deltafence.requests",
    kind=Kind.COUNTER,
    unit="{request}",
    meaning="Admitted requests that ended, by outcome; `code` is the client's error, `none` where it got none of ours.",
    labels=("mode", "api", "route", "model", "outcome", "code", "reason"),
)
OBSERVED: Final = Instrument(
    name="deltafence.observed.requests",
    kind=Kind.COUNTER,
    unit="{request}",
    meaning="Requests of routes in mode `observe`, by what happened and by what `enforce` would have done.",
    labels=("route", "outcome", "would", "code"),
)
TURNED_AWAY: Final = Instrument(
    name="deltafence.requests.turned_away",
    kind=Kind.COUNTER,
    unit="{request}",
    meaning="Requests answered before they were admitted: too large, not readable, draining, or too many at once.",
    labels=("api", "code"),
)
ACTIVE: Final = Instrument(
    name="deltafence.requests.active",
    kind=Kind.UP_DOWN_COUNTER,
    unit="{request}",
    meaning="Admitted requests without an outcome, by phase.",
    labels=("phase",),
)
ATTEMPTS: Final = Instrument(
    name="deltafence.attempts",
    kind=Kind.COUNTER,
    unit="{attempt}",
    meaning="Attempts started; `repeat` is `true` from a request's second one on.",
    labels=("model", "repeat"),
)
FAILURES: Final = Instrument(
    name="deltafence.attempt.failures",
    kind=Kind.COUNTER,
    unit="{attempt}",
    meaning="Attempts that failed, by cause, and by whether the request was `before` or `after` its first delta.",
    labels=("model", "cause", "boundary"),
)
REPEATS: Final = Instrument(
    name="deltafence.repeats",
    kind=Kind.COUNTER,
    unit="{decision}",
    meaning="Decisions about a repeat: `gate` is the first gate that refused, or `all` where every gate let it pass.",
    labels=("model", "decision", "gate"),
)
FENCES: Final = Instrument(
    name="deltafence.fences",
    kind=Kind.COUNTER,
    unit="{fence}",
    meaning="Fences of failed attempts, by proof; `none` where no proof could be had, and then nothing is repeated.",
    labels=("proof", "cause"),
)
FENCE_DURATION: Final = Instrument(
    name="deltafence.fence.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    meaning="Time that a request lost between an attempt's failure and the proof that it can't publish any more.",
    labels=("proof",),
    buckets=_FENCE_S,
)
FIRST_DELTA: Final = Instrument(
    name=gen_ai_metrics.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN,
    kind=Kind.HISTOGRAM,
    unit="s",
    meaning="From admission to the first delta, over all attempts.",
    labels=(OPERATION, MODEL),
    buckets=_FIRST_TOKEN_S,
)
DURATION: Final = Instrument(
    name=gen_ai_metrics.GEN_AI_SERVER_REQUEST_DURATION,
    kind=Kind.HISTOGRAM,
    unit="s",
    meaning="From admission to the end of the answer, over all attempts.",
    labels=(OPERATION, MODEL, ERROR),
    buckets=_REQUEST_S,
)
DELIVERED: Final = Instrument(
    name="deltafence.delivered.tokens",
    kind=Kind.COUNTER,
    unit="{token}",
    meaning="Output tokens handed to clients, counted when their request ends; by outcome, so that partial output shows.",
    labels=("model", "outcome"),
)
BUDGET: Final = Instrument(
    name="deltafence.retry_budget.repeats",
    kind=Kind.GAUGE,
    unit="{repeat}",
    meaning="Repeats left in a model pool's retry budget when its last attempt started.",
    labels=("model",),
)
RENEWALS: Final = Instrument(
    name="deltafence.lease.renewals",
    kind=Kind.COUNTER,
    unit="{lease}",
    meaning="Leases renewed by an answered heartbeat (`renewed`), or sent with one that was not answered (`unanswered`).",
    labels=("result",),
)
UNRECORDED: Final = Instrument(
    name="deltafence.journal.unrecorded",
    kind=Kind.COUNTER,
    unit="{event}",
    meaning="Events that the journal could not hold, where its operator chose to serve without it.",
    labels=(),
)
VERDICT: Final = Instrument(
    name="deltafence.replica.verdict",
    kind=Kind.GAUGE,
    unit="1",
    meaning="1 for the verdict that health gives a replica now, 0 for those that it gave before.",
    labels=("replica", "verdict"),
)
VERDICT_CHANGES: Final = Instrument(
    name="deltafence.replica.verdict.changes",
    kind=Kind.COUNTER,
    unit="{change}",
    meaning="Times that a replica got another verdict.",
    labels=("verdict",),
)
POLICY_ERRORS: Final = Instrument(
    name="deltafence.policy.errors",
    kind=Kind.COUNTER,
    unit="{error}",
    meaning="Policy sources that were refused, each once; the policy below them stayed in force.",
    labels=("source",),
)
POLICY_REFUSED: Final = Instrument(
    name="deltafence.policy.refused_sources",
    kind=Kind.GAUGE,
    unit="{source}",
    meaning="Sources of a route's policy that are refused now.",
    labels=("route",),
)
JOURNAL_AVAILABLE: Final = Instrument(
    name="deltafence.journal.available",
    kind=Kind.GAUGE,
    unit="1",
    meaning="1 while the journal takes writes; at 0 no boundary can be recorded, so none is crossed.",
)
JOURNAL_WAITING: Final = Instrument(
    name="deltafence.journal.waiting",
    kind=Kind.GAUGE,
    unit="{event}",
    meaning="Events that were taken and are not stored yet.",
)
JOURNAL_LAG: Final = Instrument(
    name="deltafence.journal.lag",
    kind=Kind.GAUGE,
    unit="s",
    meaning="Age of the oldest event that is not stored yet.",
)

INSTRUMENTS: Final = (
    REQUESTS,
    OBSERVED,
    TURNED_AWAY,
    ACTIVE,
    ATTEMPTS,
    FAILURES,
    REPEATS,
    FENCES,
    FENCE_DURATION,
    FIRST_DELTA,
    DURATION,
    DELIVERED,
    BUDGET,
    RENEWALS,
    VERDICT,
    VERDICT_CHANGES,
    POLICY_ERRORS,
    POLICY_REFUSED,
    JOURNAL_AVAILABLE,
    JOURNAL_WAITING,
    JOURNAL_LAG,
    UNRECORDED,
)
"""In the order in which the reference tells them."""

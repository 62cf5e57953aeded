"""``deltafence journal``: what the durable journal says, and whether it keeps the design's promises."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

import click

from extproc.app.admin import facts_document
from extproc.app.database_options import COMMAND_OWNER, DATABASE_OPTION, run_on_database
from extproc.app.parameters import DURATION
from extproc.app.status.rendering import shown
from extproc.app.words import clock_text, count_text
from extproc.contract.errors import ErrorCode
from extproc.decision.effects import Outcome
from extproc.journal.durable import DurableJournal
from extproc.journal.interface import History, JournalQuery
from extproc.journal.records import IN_DOUBT, LATE, OPEN, RECORDED, JournalEvent, RequestFacts, fold_all
from extproc.journal.texts import RequestText, select_text
from extproc.journal.verify import Violation, verify
from extproc.storage.owner import Owner
from extproc.storage.script import Database

PAGE_REQUESTS: Final = 500
NOT_FOUND_STATUS: Final = 1
VIOLATIONS_STATUS: Final = 1


@click.group()
def journal() -> None:
    """Read the durable journal."""


@journal.command()
@click.argument("request_id")
@DATABASE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, the same as GET /deltafence/v1/requests/{id}.")
@click.option("--text", "with_text", is_flag=True, help="Print what was asked and answered instead (policy journal.store_text).")
def show(request_id: str, url: str, as_json: bool, with_text: bool) -> None:
    """Print one request's facts and its timeline. Exit status 1 where it is unknown."""
    if with_text:
        _show_text(request_id, run_on_database(url, lambda database: database.read(partial(select_text, request_id))))
        return
    events = run_on_database(url, lambda database: _open(database).events(request_id))
    facts = fold_all(events)
    if facts is None:
        click.echo(f"no request {request_id} is in the journal", err=True)
        sys.exit(NOT_FOUND_STATUS)
    if as_json:
        click.echo(json.dumps(facts_document(facts, events), indent=2))
        return
    click.echo(_summary(facts))
    for line in _timeline(events):
        click.echo(line)


@journal.command("list")
@DATABASE_OPTION
@click.option(
    "--outcome", type=click.Choice([OPEN, *(outcome.value for outcome in Outcome)]), help="Only requests that ended so."
)
@click.option("--since", "since_s", type=DURATION, help="Only requests admitted in the last 30s, 5m, 1h, ...")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def list_command(url: str, outcome: str | None, since_s: float | None, limit: int, as_json: bool) -> None:
    """List requests, the newest first."""
    since_ms = 0 if since_s is None else int((time.time() - since_s) * 1000)
    query = JournalQuery(outcome=outcome, since_ms=since_ms, requests_max=limit)
    found = run_on_database(url, lambda database: _open(database).requests(query))
    for facts in found:
        click.echo(json.dumps(asdict(facts)) if as_json else _line(facts))
    if not found:
        click.echo("no such requests", err=True)


@journal.command("verify")
@DATABASE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify_command(url: str, as_json: bool) -> None:
    """Check every stored request against the promises of the design. Exit status 1 where one is broken."""
    counts, violations = run_on_database(url, _verify)
    if as_json:
        click.echo(json.dumps({"ok": not violations, **counts, "violations": [asdict(item) for item in violations]}, indent=2))
    else:
        for violation in violations:
            click.echo(f"{violation.request_id}: {violation.invariant}: {violation.how}")
        told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        click.echo(f"{told}; {len(violations)} promises broken")
    if violations:
        sys.exit(VIOLATIONS_STATUS)


async def _verify(database: Database) -> tuple[dict[str, int], list[Violation]]:
    counts = {"requests": 0, "running": 0, "waiting_for_housekeeping": 0, "boundaries_recorded_late": 0, "boundaries_in_doubt": 0}
    violations: list[Violation] = []
    after = ""
    while page := await _open(database).histories(after, PAGE_REQUESTS):
        after = page[-1].request_id
        for history in page:
            facts = fold_all(history.events)
            counts["requests"] += 1
            counts["running"] += history.running
            counts["waiting_for_housekeeping"] += not history.running and facts is not None and facts.outcome is None
            counts["boundaries_recorded_late"] += _is_marked(history, LATE)
            counts["boundaries_in_doubt"] += _is_marked(history, IN_DOUBT) or (facts is not None and _was_refused(facts))
            violations += verify(history, int(time.time() * 1000))
    return counts, violations


def _is_marked(history: History, mark: str) -> bool:
    return any(event.detail.get(RECORDED) == mark for event in history.events)


def _was_refused(facts: RequestFacts) -> bool:
    """The boundary is on record, and the gateway that recorded it never learnt that."""
    return facts.first_delta_sent and facts.error_code == ErrorCode.JOURNAL_UNAVAILABLE


def _open(database: Database) -> DurableJournal:
    return DurableJournal(database, Owner(database, COMMAND_OWNER))


# --- words for people ------------------------------------------------------------------------------------------------------


def _show_text(request_id: str, text: RequestText | None) -> None:
    if text is None:
        click.echo(f"no text of {request_id} is in the journal", err=True)
        sys.exit(NOT_FOUND_STATUS)
    for title, body in (("request", text.request), ("answer", text.answer)):
        click.echo(f"--- {title}\n{body.decode('utf-8', 'replace').rstrip()}")


def _summary(facts: RequestFacts) -> str:
    kind = "stream" if facts.stream else "whole answer"
    lines = [f"{facts.request_id}  {facts.api}  model {shown(facts.model) or '-'}  route {facts.route or '-'}  {kind}"]
    delivered = f"{facts.delivered_output_tokens} output tokens delivered ({facts.delivered_output_tokens_source})"
    ended = f"{facts.outcome} ({facts.reason})" if facts.outcome else f"{OPEN}, phase {facts.phase}"
    lines.append(f"{ended}: {delivered}, {count_text(len(facts.attempts), 'attempt')}")
    return "\n".join(lines)


def _timeline(events: Sequence[JournalEvent]) -> list[str]:
    """One line an event: when, counted from the admission, what, where, and the detail."""
    begin_ms = events[0].at_ms
    lines = []
    for event in events:
        where = " ".join(part for part in (event.attempt_id, f"on {event.replica}" if event.replica else None) if part)
        detail = "  ".join(f"{name}={shown(value)}" for name, value in event.detail.items() if value is not None)
        lines.append(
            f"  +{(event.at_ms - begin_ms) / 1000:<9.3f} {event.kind:<17} {where}{'  ' if where else ''}{detail}".rstrip()
        )
    return [f"  {clock_text(begin_ms)}", *lines]


def _line(facts: RequestFacts) -> str:
    return "  ".join(
        (
            facts.request_id,
            clock_text(facts.admitted_at_ms),
            f"{facts.outcome or OPEN:<11}",
            f"{facts.reason or '-':<20}",
            f"{facts.delivered_output_tokens:>6} tokens",
            f"{count_text(len(facts.attempts), 'attempt'):<10}",
            str(shown(facts.model) or "-"),
        )
    )

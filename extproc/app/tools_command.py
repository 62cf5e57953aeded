"""``deltafence tools``: the ledger of tool calls, and settling the ones whose outcome nobody knows."""

import json
import sys
from dataclasses import asdict
from typing import IO, Final

import click

from extproc.app.database_options import COMMAND_OWNER, DATABASE_OPTION, run_on_database
from extproc.app.parameters import DURATION
from extproc.app.status.rendering import shown
from extproc.app.words import clock_text
from extproc.decision.tool_call import CallState
from extproc.storage.owner import Owner
from extproc.storage.script import Database
from extproc.tools.interface import ListedCall, ToolAnswer
from extproc.tools.ledger import DurableLedger

NOT_SETTLED_STATUS: Final = 1
CARRIED_OUT: Final = "carried-out"
NOT_CARRIED_OUT: Final = "not-carried-out"


@click.group()
def tools() -> None:
    """See tool calls, and settle those with an unknown outcome."""


@tools.command("list")
@DATABASE_OPTION
@click.option("--state", type=click.Choice([state.value for state in CallState]), help="Only calls in this state.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def list_command(url: str, state: str | None, limit: int, as_json: bool) -> None:
    """List recorded calls, the newest first. The first column is what ``settle`` takes."""
    wanted = None if state is None else CallState(state)
    found = run_on_database(url, lambda database: _ledger(database).calls(wanted, limit))
    for call in found:
        click.echo(json.dumps(asdict(call)) if as_json else _line(call))
    if not found:
        click.echo("no such calls", err=True)


@tools.command()
@click.argument("call")
@click.argument("outcome", type=click.Choice([CARRIED_OUT, NOT_CARRIED_OUT]))
@DATABASE_OPTION
@click.option("--status", default=200, show_default=True, type=click.IntRange(200, 599), help="Of the answer for repeats.")
@click.option("--answer", "answer_file", type=click.File("rb"), help="The answer's body for repeats; - reads it from stdin.")
@click.option("--content-type", default="application/json", show_default=True, help="Of the answer for repeats.")
@click.option("--keep", "keep_s", default="24h", show_default=True, type=DURATION, help="How long the answer is kept.")
def settle(
    call: str,
    outcome: str,
    url: str,
    status: int,
    answer_file: IO[bytes] | None,
    content_type: str,
    keep_s: float,
) -> None:
    """Say what became of a call whose outcome is unknown. Look at the tool's own records first.

    carried-out: repeats get the answer given here, or are told that there is none. not-carried-out: the next repeat is sent to
    the tool. Exit status 1 where there is no such call with an unknown outcome.
    """
    carried_out = outcome == CARRIED_OUT
    if answer_file is not None and not carried_out:
        raise click.UsageError(f"--answer belongs to {CARRIED_OUT}")
    answer = None
    if answer_file is not None:
        answer = ToolAnswer(status=status, headers=(("content-type", content_type),), body=answer_file.read())
    keep_ms = int(keep_s * 1000)
    settled = run_on_database(
        url, lambda database: _ledger(database).settle(call, carried_out=carried_out, answer=answer, keep_ms=keep_ms)
    )
    if not settled:
        click.echo(f"{call} is not a call with an unknown outcome; see deltafence tools list --state unknown", err=True)
        sys.exit(NOT_SETTLED_STATUS)
    click.echo(f"{call}: {'carried out' if carried_out else 'not carried out, the next repeat is sent to the tool'}")


def _ledger(database: Database) -> DurableLedger:
    return DurableLedger(database, Owner(database, COMMAND_OWNER))


def _line(call: ListedCall) -> str:
    answer = "-" if call.status is None else f"{call.status}, {call.answer_bytes} bytes"
    return "  ".join(
        (str(shown(call.call_key)), clock_text(call.started_at_ms), f"{call.state:<11}", f"{answer:<18}", call.why or "-")
    )

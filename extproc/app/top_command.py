"""``deltafence top``: the status page in a terminal, over the same JSON."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from extproc.app.parameters import DURATION
from extproc.app.status.rendering import ago, shown, span

PATH: Final = "/deltafence/v1/status"
READ_TIMEOUT_S: Final = 5.0
DECISIONS_MAX: Final = 12
RUNNING_MAX: Final = 10
UNREADABLE: Final = (OSError, ValueError, HTTPException)
"""Raised where nobody answers, or something that is no status document, or that is not even HTTP."""

STYLES: Final = {
    **dict.fromkeys(("serving", "idle", "busy", "reachable", "completed"), "green"),
    **dict.fromkeys(("draining", "suspect", "restarted", "paused", "unknown", "fencing", "unwatched"), "yellow"),
    **dict.fromkeys(("hung", "dead", "interrupted", "failed"), "bold red"),
    **dict.fromkeys(("starting", "admitted", "prefill", "decode"), "cyan"),
}


@click.command()
@click.option("--admin", default="http://127.0.0.1:9090", show_default=True, metavar="URL", help="A processor's own address.")
@click.option("--every", "every_s", type=DURATION, default="1s", show_default=True, help="How often to look.")
@click.option("--once", is_flag=True, help="Print one look and end. Exit status 1 where the processor does not answer.")
def top(admin: str, every_s: float, once: bool) -> None:
    """Watch one gateway: replicas with their verdicts, running requests by phase, the last decisions with why.

    Ends with Ctrl-C. Nothing it asks for changes anything.
    """
    if once:
        Console(highlight=False).print(screen(_read_once(admin)))
        return
    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        try:
            for look in _looks(admin, every_s):
                live.update(look, refresh=True)
        except KeyboardInterrupt:
            return


def _read_once(admin: str) -> dict[str, Any]:
    try:
        return read_status(admin)
    except UNREADABLE as error:
        raise click.ClickException(f"{admin}: {error}") from error


def read_status(admin: str) -> dict[str, Any]:
    """The processor's status document. Raises what UNREADABLE names."""
    with urllib.request.urlopen(admin.rstrip("/") + PATH, timeout=READ_TIMEOUT_S) as answer:  # noqa: S310  (the user's URL)
        document = json.load(answer)
    if not isinstance(document, dict) or "replicas" not in document:
        raise ValueError(f"{PATH} is not a processor's status")
    return document


def _looks(admin: str, every_s: float) -> Iterator[Group]:
    """A picture for each look; a processor that does not answer is shown as that, over what was known last."""
    last: dict[str, Any] | None = None
    while True:
        try:
            last = read_status(admin)
            yield screen(last)
        except UNREADABLE as error:
            trouble = Text(f"{admin} does not answer: {error}", style="bold red")
            yield Group(trouble) if last is None else Group(trouble, screen(last))
        time.sleep(every_s)


def screen(status: dict[str, Any]) -> Group:
    """One look as rich draws it."""
    return Group(_head(status), _replicas(status), _running(status), _decisions(status))


def _head(status: dict[str, Any]) -> Text:
    line = Text.assemble(
        ("deltafence ", "bold"),
        _word(status["state"]),
        f"  version {status['version']}, up {span(status['up_s'])}{_processes(status)}\n",
    )
    for phase, number in status["active"].items():
        line.append_text(_word(phase)).append(f" {number}  ")
    for outcome, number in status["ended"].items():
        line.append_text(_word(outcome)).append(f" {number}  ")
    if status["processes"]["silent"]:
        line.append(f"\nnot counted, because it does not answer: {', '.join(status['processes']['silent'])}", style="bold red")
    if not status["journal"]["available"]:
        line.append("\nthe journal takes no writes: no answer is begun", style="bold red")
    if status["routes"]["refused"]:
        line.append(f"\n{len(status['routes']['refused'])} policy sources are refused; see /routes", style="yellow")
    return line


def _processes(status: dict[str, Any]) -> str:
    several = status["processes"]["answering"] > 1 or status["processes"]["silent"]
    return f", {status['processes']['answering']} processes shown as one" if several else ""


def _replicas(status: dict[str, Any]) -> Table:
    table = _table("replica", "verdict", "for", "attempts", "new", "evidence")
    for row in status["replicas"]:
        held = "-" if row["for_s"] is None else span(row["for_s"])
        new = "yes" if row["standing"] == "placeable" else row["standing"]
        table.add_row(_safe(row["destination"]), _word(row["verdict"]), held, str(row["attempts"]), new, _safe(row["evidence"]))
    return table


def _running(status: dict[str, Any]) -> Table:
    table = _table("running", "phase", "for", "attempt", "replica", "model")
    for line in status["running"][:RUNNING_MAX]:
        replica, model = _safe(line["replica"] or "-"), _safe(line["model"])
        table.add_row(line["request_id"], _word(line["phase"]), span(line["took_s"]), str(line["attempts"]), replica, model)
    return table


def _decisions(status: dict[str, Any]) -> Table:
    table = _table("when", "last decisions", "request")
    for line in status["decisions"][:DECISIONS_MAX]:
        table.add_row(ago(line["s_ago"]), _safe(line["what"]), line["request_id"])
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", title=None)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _word(word: str) -> Text:
    return Text(str(shown(word)), style=STYLES.get(word, ""))


def _safe(text: str) -> Text:
    """Text from outside: neither rich's markup nor a terminal's control characters."""
    return Text(str(shown(text)))

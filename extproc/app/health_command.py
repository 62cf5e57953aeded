"""``deltafence health``: the verdicts of the gateway's monitor, once or again and again, for a person."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from extproc.app.addresses import ReplicaAddress
from extproc.app.parameters import DURATION, REPLICA
from extproc.decision.findings import History
from extproc.decision.health_report import encode_history
from extproc.decision.looks import Look
from extproc.decision.verdicts import HealthSettings, Judgement, Verdict, duration
from extproc.replicas.health_reader import monotonic_ms
from extproc.replicas.monitor import HealthMonitor

OK, NOT_SURE, BROKEN = 0, 3, 4
"""Exit statuses; 1 and 2 are the program's own failure and wrong usage."""
STATUS: Final[dict[Verdict, int]] = {
    Verdict.IDLE: OK,
    Verdict.BUSY: OK,
    Verdict.REACHABLE: OK,
    Verdict.STARTING: NOT_SURE,
    Verdict.RESTARTED: NOT_SURE,
    Verdict.PAUSED: NOT_SURE,
    Verdict.SUSPECT: NOT_SURE,
    Verdict.UNKNOWN: NOT_SURE,
    Verdict.HUNG: BROKEN,
    Verdict.DEAD: BROKEN,
}
COLOURS: Final = {OK: "green", NOT_SURE: "yellow", BROKEN: "bold red"}
PLAIN_WIDTH: Final = 200
"""Of a table that goes to a file or a pipe, where no terminal says how wide it may be."""
READINGS_MAX: Final = 5
"""After so many an idle replica that was not asked (it names no model, or others are asked first) is taken as it is."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What is known of each replica so far, by its URL."""

    histories: dict[str, History]
    readings: dict[str, int] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, url: str, history: History) -> None:
        """One more look."""
        self.histories[url] = history
        self.readings[url] = self.readings.get(url, 0) + 1
        self.changed.set()

    @property
    def is_settled(self) -> bool:
        """Whether every replica has a verdict that another look would only confirm."""
        return all(url in self.readings and _is_settled(history, self.readings[url]) for url, history in self.histories.items())

    @property
    def status(self) -> int:
        """Of the worst verdict."""
        return max(STATUS[history.judgement.verdict] for history in self.histories.values())


def _is_settled(history: History, looks: int) -> bool:
    judgement = history.judgement
    if judgement.next.look not in (Look.METRICS, Look.MODELS):
        return False
    match judgement.verdict:
        case Verdict.IDLE:
            return history.answered_at_ms is not None or looks >= READINGS_MAX
        case Verdict.BUSY:
            return history.previous is not None or looks >= READINGS_MAX
        case Verdict.SUSPECT | Verdict.RESTARTED:
            return False
        case _:
            return True


@click.command()
@click.argument("urls", nargs=-1, required=True, type=REPLICA, metavar="URL...")
@click.option("--json", "as_json", is_flag=True, help="One JSON document; with --watch one line per look that changed something.")
@click.option("--watch", is_flag=True, help="Go on until interrupted.")
@click.option("--proxy", is_flag=True, help="The URLs are proxies or load balancers: ask for /v1/models only.")
@click.option("--interval", default="2s", show_default=True, type=DURATION, help="Between two readings.")
@click.option(
    "--hung-after", default="30s", show_default=True, type=DURATION, help="Standing still for so long, over two waits, is hung."
)
def health(urls: tuple[ReplicaAddress, ...], as_json: bool, watch: bool, proxy: bool, interval: float, hung_after: float) -> None:
    """Say of each replica whether it is idle, busy, hung, dead or unknown, and why.

    Reads metrics, at least twice; sends one request of one token to a replica only where nothing runs or waits. A suspect is
    watched until it moves or is proved hung. VLLM_API_KEY, if set, is sent to the /v1 paths.

    \b
    Exit status by the worst verdict:
      0  idle, busy, reachable
      3  starting, restarted, paused, suspect, unknown
      4  hung, dead
    """
    try:
        settings = HealthSettings(
            interval_ms=round(interval * 1000),
            hung_after_ms=round(hung_after * 1000),
            stale_after_ms=max(20_000, round(4 * interval * 1000)),
        )
    except ValueError as refusal:
        raise click.UsageError(str(refusal)) from refusal
    show = _json_view(watch=watch) if as_json else _table_view(watch=watch)
    addresses = list(dict.fromkeys(map(str, urls)))
    try:
        status = asyncio.run(_look(addresses, settings, show, watch=watch, is_proxy=proxy))
    except KeyboardInterrupt:
        status = show.status
    show.finish()
    sys.exit(status)


async def _look(urls: Sequence[str], settings: HealthSettings, show: "View", *, watch: bool, is_proxy: bool) -> int:
    now_ms = monotonic_ms()
    seen = Seen(histories={url: History.begin(now_ms, is_proxy=is_proxy, expected_up=True) for url in urls})
    # A suspect is proved or cleared well before; this bounds what else can drag on, such as a restart without an answer.
    limit_s = (settings.hung_after_ms + 6 * settings.interval_ms + settings.answer_deadline_ms) / 1000
    monitor = HealthMonitor(settings, lambda _, __: None, on_look=seen.take, api_key=os.environ.get("VLLM_API_KEY", ""))
    async with monitor:
        for url in urls:
            monitor.watch(url, url, is_proxy=is_proxy, expected_up=True)
        try:
            async with asyncio.timeout(None if watch else limit_s):
                while watch or not seen.is_settled:
                    seen.changed.clear()
                    await seen.changed.wait()
                    show.show(seen)
        except TimeoutError:
            pass
    show.show(seen)
    return seen.status


class View:
    """Shows what was seen; ``finish`` is called once, at the end."""

    def __init__(self) -> None:
        self.status = NOT_SURE

    def show(self, seen: Seen) -> None:
        self.status = seen.status

    def finish(self) -> None:
        """Nothing more comes."""


class LiveTable(View):
    """A terminal's table, redrawn in place."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, seen: Seen) -> None:
        super().show(seen)
        self._live.update(draw(seen), refresh=True)

    def finish(self) -> None:
        self._live.stop()


class Once(View):
    """Everything at the end, through ``write``."""

    def __init__(self, write: Callable[[Seen], None]) -> None:
        super().__init__()
        self._write = write
        self._seen: Seen | None = None

    def show(self, seen: Seen) -> None:
        super().show(seen)
        self._seen = seen

    def finish(self) -> None:
        if self._seen is not None:
            self._write(self._seen)


class Lines(View):
    """One line for each replica whose verdict or cause changed."""

    def __init__(self, write: Callable[[str, History], None]) -> None:
        super().__init__()
        self._write = write
        self._last: dict[str, Judgement] = {}

    def show(self, seen: Seen) -> None:
        super().show(seen)
        for url, history in seen.histories.items():
            after, before = history.judgement, self._last.get(url)
            if url in seen.readings and (before is None or (after.verdict, after.cause) != (before.verdict, before.cause)):
                self._last[url] = after
                self._write(url, history)


def _json_view(*, watch: bool) -> View:
    if watch:
        return Lines(lambda url, history: click.echo(json.dumps(_document(url, history))))
    return Once(lambda seen: click.echo(json.dumps([_document(*item) for item in seen.histories.items()], indent=2)))


def _table_view(*, watch: bool) -> View:
    console = Console()
    if console.is_terminal:
        return LiveTable(console)
    if watch:
        return Lines(lambda url, history: click.echo(f"{url}\t{history.judgement.verdict}\t{plain(history.judgement.evidence)}"))
    return Once(lambda seen: Console(width=PLAIN_WIDTH).print(draw(seen)))


def _document(url: str, history: History) -> dict[str, object]:
    return {"url": url} | encode_history(history, monotonic_ms())


def draw(seen: Seen) -> Table:
    """The table that a person sees."""
    table = Table("replica", "verdict", "for", "evidence", box=None, pad_edge=False, header_style="bold")
    now_ms = monotonic_ms()
    for url, history in seen.histories.items():
        judgement = history.judgement
        colour = COLOURS[STATUS[judgement.verdict]]
        table.add_row(
            Text(url),
            Text(str(judgement.verdict), style=colour),
            Text(duration(now_ms - judgement.since_ms)),
            Text(plain(judgement.evidence), overflow="fold"),
        )
    return table


def plain(text: str) -> str:
    """Evidence holds labels and errors that a server wrote: nothing in it may steer the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)

"""One gateway of several processor processes, shown as one: their status documents are asked for and added up.

Each process knows only what it served. Who looks at any one of them means the gateway, so what it shows is the sum, and a process
that does not answer is named instead of left out in silence. ``/metrics`` stays each process's own: Prometheus adds up.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import aiohttp

from extproc.app.addresses import Address
from extproc.app.status.view import DECISIONS_SHOWN_MAX, ENDED_SHOWN_MAX, RUNNING_SHOWN_MAX
from extproc.decision.verdicts import Verdict

LOGGER: Final = logging.getLogger("deltafence.status")

OWN_STATUS: Final = "/deltafence/v1/status?processes=own"
ANSWER_S_MAX: Final = 1.0
"""A process that needs longer is named as silent: the page renews itself, and must come."""

WORST_FIRST: Final = (
    Verdict.HUNG,
    Verdict.DEAD,
    Verdict.SUSPECT,
    Verdict.RESTARTED,
    Verdict.PAUSED,
    Verdict.UNKNOWN,
    Verdict.STARTING,
    Verdict.BUSY,
    Verdict.IDLE,
    Verdict.REACHABLE,
)
"""Each process judges a replica for itself; of several verdicts a person on call wants the worst, with its evidence."""

Document = dict[str, Any]


class Siblings:
    """The other processes of one gateway, by their admin addresses."""

    def __init__(self, addresses: Sequence[Address] = ()) -> None:
        self._addresses = addresses

    async def gateway_document(self, own: Document) -> Document:
        """The status of all processes as one; with nobody beside this one, its own."""
        if not self._addresses:
            return own
        timeout = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            answers = await asyncio.gather(*(_ask(session, address) for address in self._addresses))
        answered = zip(self._addresses, answers, strict=True)
        silent = [str(address) for address, answer in answered if answer is None]
        return as_one([own, *(answer for answer in answers if answer is not None)], silent)


async def _ask(session: aiohttp.ClientSession, address: Address) -> Document | None:
    try:
        async with session.get(f"http://{address}{OWN_STATUS}") as answer:
            answer.raise_for_status()
            document = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        LOGGER.warning("processor at %s does not tell its status: %r", address, error)
        return None
    return document if isinstance(document, dict) else None


def as_one(documents: Sequence[Document], silent: Sequence[str]) -> Document:
    """Status documents (view.status_document) added up; the first is that of the process that is asked."""
    own = documents[0]
    return own | {
        "processes": {"answering": len(documents), "silent": list(silent)},
        "state": max((each["state"] for each in documents), key=("serving", "draining").index),
        "journal": {
            "available": all(each["journal"]["available"] for each in documents),
            "waiting_events": sum(each["journal"]["waiting_events"] for each in documents),
        },
        "active": _sums(each["active"] for each in documents),
        "ended": _sums(each["ended"] for each in documents),
        "replicas": _replicas([row for each in documents for row in each["replicas"]]),
        "decisions": _listed(documents, "decisions", lambda line: -line["at_ms"], DECISIONS_SHOWN_MAX),
        "running": _listed(documents, "running", lambda line: line["admitted_at_ms"], RUNNING_SHOWN_MAX),
        "recent": _listed(documents, "recent", lambda line: line["s_ago"], ENDED_SHOWN_MAX),
        "routes": {
            "known": max(each["routes"]["known"] for each in documents),
            "refused": list(dict.fromkeys(refused for each in documents for refused in each["routes"]["refused"])),
        },
    }


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _listed(documents: Sequence[Document], name: str, order: Callable[[Document], float], shown_max: int) -> list[Document]:
    return sorted((line for each in documents for line in each[name]), key=order)[:shown_max]


def _replicas(rows: Sequence[Document]) -> list[Document]:
    """One row a replica: the worst verdict, and everybody's attempts."""
    by_destination: dict[str, list[Document]] = {}
    for row in rows:
        by_destination.setdefault(row["destination"], []).append(row)
    return [
        min(same, key=_severity) | {"attempts": sum(row["attempts"] for row in same)}
        for _, same in sorted(by_destination.items())
    ]


def _severity(row: Document) -> int:
    return WORST_FIRST.index(row["verdict"]) if row["verdict"] in WORST_FIRST else len(WORST_FIRST)

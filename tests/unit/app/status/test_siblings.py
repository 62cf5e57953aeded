"""Several processes of one gateway are shown as one, and one that does not answer is named."""

from typing import Any

import aiohttp
import pytest

from extproc.app.addresses import Address
from extproc.app.status.siblings import WORST_FIRST, Siblings, as_one
from extproc.app.status.view import ENDED_SHOWN_MAX
from extproc.decision.verdicts import Verdict
from tests.unit.app.status.conftest import Admin, serving
from tests.unit.telemetry.events import INTERRUPTED, REPEATED, REQUEST


@pytest.fixture
async def sibling():
    async with serving(Admin()) as sibling:
        yield sibling


@pytest.fixture
async def admin(sibling):
    """In the place of conftest's: a process that has a sibling."""
    async with serving(Admin(), Siblings([Address.parse(sibling.url.removeprefix("http://"))])) as admin:
        yield admin


async def status(http, path: str = "/deltafence/v1/status") -> dict[str, Any]:
    async with http.get(path) as answer:
        assert answer.status == 200
        document: dict[str, Any] = await answer.json()
        return document


async def test_requests_of_all_processes_are_counted_and_listed(admin, sibling, http) -> None:
    admin.tell(REPEATED)
    sibling.tell(INTERRUPTED)
    together, own = await status(http), await status(http, "/deltafence/v1/status?processes=own")
    assert together["processes"] == {"answering": 2, "silent": []}
    assert own["ended"] == {"completed": 1}
    assert together["ended"] == {"completed": 1, "interrupted": 1}
    assert len(together["recent"]) == 2
    assert len(together["decisions"]) == len(own["decisions"]) + 1
    moments = [line["at_ms"] for line in together["decisions"]]
    assert moments == sorted(moments, reverse=True)


async def test_page_shows_a_siblings_interrupted_request_and_says_how_many_it_speaks_for(admin, sibling, http) -> None:
    sibling.tell(INTERRUPTED)
    async with http.get("/") as answer:
        text = await answer.text()
    assert "2 processes shown as one" in text
    assert f'href="/requests/{REQUEST}"' in text


async def test_replica_has_the_worst_verdict_with_its_evidence(admin, sibling, http) -> None:
    admin.reports["10.0.0.1:8000"] = {"verdict": "busy", "evidence": "2 running; 107 steps in 10 s", "for_s": 3}
    sibling.reports["10.0.0.1:8000"] = {"verdict": "hung", "evidence": "2 running, nothing moved in 61 s", "for_s": 61}
    first, _ = (await status(http, "/deltafence/v1/replicas"))["replicas"]
    assert (first["verdict"], first["evidence"]) == ("hung", "2 running, nothing moved in 61 s")


async def test_refused_policy_source_of_a_sibling_is_shown(admin, sibling, http) -> None:
    sibling.resolver.resolve(initial_metadata="mode: sideways", route_name="chat")
    async with http.get("/routes") as answer:
        assert "sideways" in await answer.text()


async def test_process_that_does_not_answer_is_named(unused_tcp_port) -> None:
    gone = Address(host="127.0.0.1", port=unused_tcp_port)
    async with serving(Admin(), Siblings([gone])) as admin, aiohttp.ClientSession(admin.url) as http:
        assert (await status(http))["processes"] == {"answering": 1, "silent": [str(gone)]}
        async with http.get("/") as answer:
            assert f"it does not answer: {gone}" in await answer.text()


async def test_one_draining_process_or_one_that_has_no_journal_is_not_hidden_by_the_others(admin, sibling, http) -> None:
    own = await status(http, "/deltafence/v1/status?processes=own")
    trouble = own | {"state": "draining", "journal": {"available": False, "waiting_events": 3}}
    for documents in ([own, trouble], [trouble, own]):
        together = as_one(documents, [])
        assert together["state"] == "draining"
        assert together["journal"] == {"available": False, "waiting_events": 3}


async def test_lists_stay_bounded(admin, http) -> None:
    own = await status(http, "/deltafence/v1/status?processes=own")
    many = own | {"recent": [{"s_ago": number, "request_id": f"req_{number}"} for number in range(ENDED_SHOWN_MAX)]}
    recent = as_one([many, many, many], [])["recent"]
    assert len(recent) == ENDED_SHOWN_MAX
    assert recent[-1]["s_ago"] < ENDED_SHOWN_MAX / 2


def test_every_verdict_has_its_place() -> None:
    assert set(WORST_FIRST) == set(Verdict)

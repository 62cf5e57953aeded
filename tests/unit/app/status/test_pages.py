"""The pages and their JSON: complete, read-only, and unharmed by what comes from outside."""

import re
from html.parser import HTMLParser

import pytest

from extproc.journal.interface import JournalUnavailable
from extproc.replicas.roster import Standing
from tests.unit.telemetry.events import INTERRUPTED, REFUSED, REPEATED, REQUEST, admitted

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
INVISIBLE = "gnp\u202egpj\u200b\u0007"


class Elements(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


async def page(http, path: str, status: int = 200) -> str:
    async with http.get(path) as answer:
        assert answer.status == status
        assert answer.content_type == "text/html"
        return await answer.text()


async def document(http, path: str, status: int = 200):
    async with http.get(path) as answer:
        assert answer.status == status
        return await answer.json()


async def test_status_is_one_document_for_pages_and_programs(admin, http) -> None:
    admin.reports["10.0.0.1:8000"] = {"verdict": "hung", "evidence": "2 running, 0 steps in 60 s", "for_s": 3.5}
    admin.tell(REPEATED)
    admin.tell([admitted(request="req_2")])
    status = await document(http, "/deltafence/v1/status")
    assert status["state"] == "serving"
    assert status["active"] == {"admitted": 1, "prefill": 0, "fencing": 0, "decode": 0}
    assert status["ended"] == {"completed": 1}
    assert [row["verdict"] for row in status["replicas"]] == ["hung", "unwatched"]
    assert status["replicas"][0]["evidence"] == "2 running, 0 steps in 60 s"
    assert [line["kind"] for line in status["decisions"]] == ["attempt_started", "attempt_failed"]
    assert [line["request_id"] for line in status["running"]] == ["req_2"]
    assert (await document(http, "/deltafence/v1/replicas"))["replicas"] == status["replicas"]


async def test_a_replica_that_lost_an_attempt_is_shown_in_doubt_until_health_has_looked(admin, http) -> None:
    first, second = [replica.destination for replica in admin.roster.replicas]
    admin.roster.doubt(first)
    rows = (await document(http, "/deltafence/v1/replicas"))["replicas"]
    assert {row["destination"]: row["standing"] for row in rows} == {first: "in_doubt", second: "placeable"}
    assert "in_doubt" in await page(http, "/")
    admin.roster.set_standing(first, Standing.PLACEABLE)
    rows = (await document(http, "/deltafence/v1/replicas"))["replicas"]
    assert [row["standing"] for row in rows] == ["placeable", "placeable"]


async def test_a_replica_that_gets_nothing_is_not_shown_as_one_that_gets_what_is_left(admin, http) -> None:
    first = admin.roster.replicas[0].destination
    admin.roster.set_standing(first, Standing.WITHHELD)
    admin.roster.doubt(first)
    rows = (await document(http, "/deltafence/v1/replicas"))["replicas"]
    assert {row["standing"] for row in rows if row["destination"] == first} == {"withheld"}


async def test_requests_are_listed_by_outcome(admin, http) -> None:
    admin.tell(INTERRUPTED)
    admin.tell([admitted(request="req_2")])
    found = await document(http, "/deltafence/v1/requests?outcome=interrupted&limit=5")
    assert [line["request_id"] for line in found["requests"]] == [REQUEST]
    assert found["requests"][0]["title"].startswith("Interrupted after 12 output tokens")
    both = await document(http, "/deltafence/v1/requests?since_s=3600")
    assert len(both["requests"]) == 2


@pytest.mark.parametrize("query", ["outcome=lost", "limit=many", "since_s=-1", "limit=" + "9" * 40])
async def test_impossible_query_is_refused_by_name(http, query: str) -> None:
    error = (await document(http, f"/deltafence/v1/requests?{query}", status=400))["error"]
    assert query.partition("=")[0] in error["message"]


async def test_status_page_shows_replicas_decisions_and_requests(admin, http) -> None:
    admin.reports["10.0.0.1:8000"] = {"verdict": "hung", "evidence": "2 running, 0 steps in 60 s", "for_s": 3.5}
    admin.tell(INTERRUPTED)
    text = await page(http, "/")
    for expected in ("2 running, 0 steps in 60 s", "badge hung", "The answer broke off", f'href="/requests/{REQUEST}"'):
        assert expected in text
    assert 'http-equiv="refresh"' in text
    assert 'http-equiv="refresh"' not in await page(http, "/?refresh=off")


async def test_requests_page_tells_the_story_and_draws_it(admin, http) -> None:
    admin.tell(REFUSED)
    text = await page(http, f"/requests/{REQUEST}")
    for expected in ("<svg", "bar no-fence", "attempt 1 may still be running", "source_attempt_not_fenced"):
        assert expected in text


async def test_request_is_found_by_the_search_and_a_stranger_is_not(admin, http) -> None:
    admin.tell(INTERRUPTED)
    assert REQUEST in await page(http, f"/requests?id=%20{REQUEST}%20")
    assert "No such request" in await page(http, "/requests?id=req_none", status=404)
    assert "No such request" in await page(http, "/requests?id=", status=404)
    assert "&lt;b&gt;" in await page(http, "/requests?id=<b>", status=404)


async def test_routes_page_says_where_each_key_came_from(admin, http) -> None:
    admin.resolver.resolve(initial_metadata="mode: sideways", route_name="chat")
    admin.resolver.resolve(initial_metadata="retry_budget: {percent: 5}", route_name="bulk")
    text = await page(http, "/routes")
    assert re.search(r"tools</td>.*?ledger</td>.*?file default.yaml", text)
    assert re.search(r"retry_budget.percent</td>.*?>5</td>.*?initial metadata x-deltafence-policy", text)
    assert "refused sources: 1" in text
    assert "sideways" in text


async def test_hostile_text_stays_text_on_every_page(admin, http) -> None:
    events = [admitted(model=HOSTILE + INVISIBLE, route=HOSTILE), *REPEATED[1:3]]
    admin.tell(events)
    admin.reports["10.0.0.1:8000"] = {"verdict": HOSTILE, "evidence": HOSTILE, "for_s": 1}
    admin.resolver.resolve(initial_metadata=f"{{'{HOSTILE}': 1}}", route_name=HOSTILE)
    for path in ("/", "/routes", f"/requests/{REQUEST}"):
        text = await page(http, path)
        seen = Elements()
        seen.feed(text)
        assert seen.tags.isdisjoint({"script", "img", "iframe", "object", "style"})
        assert not [name for name in seen.attributes if name.startswith("on") or name == "style"]
        assert all(character.isprintable() or character in "\n" for character in text)
    assert "\\u202e" in text


async def test_pages_forbid_scripts_frames_and_everything_from_elsewhere(http) -> None:
    async with http.get("/") as answer:
        policy = answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "frame-ancestors 'none'" in policy
    text = await page(http, "/")
    assert not re.search(r"(src|href)=\"(https?:)?//", text)
    assert " style=" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(http, method: str) -> None:
    for path in ("/", "/routes", "/metrics", f"/requests/{REQUEST}", "/deltafence/v1/status", "/deltafence/v1/requests"):
        async with http.request(method, path) as answer:
            assert answer.status in (404, 405)


async def test_page_of_a_request_survives_the_loss_of_the_journal(admin, http, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(request_id: str):
        raise JournalUnavailable("disk full")

    admin.tell(INTERRUPTED)
    monkeypatch.setattr(admin.journal, "events", unavailable)
    assert "Interrupted after 12 output tokens" in await page(http, f"/requests/{REQUEST}")
    assert "disk full" in await page(http, "/requests/req_2", status=404)


async def test_scrape_is_prometheus_text(admin, http) -> None:
    admin.tell(INTERRUPTED)
    async with http.get("/metrics") as answer:
        text = await answer.text()
        assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'deltafence_attempt_failures_total{boundary="after",cause="replica_gone",model="llama"} 1.0' in text
    assert "deltafence_journal_available 1.0" in text
    assert "process_start_time_seconds" in text

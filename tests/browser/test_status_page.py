"""The status page in a real browser, as a person on call meets it."""

from pathlib import Path

import pytest

from extproc.decision.verdicts import Verdict
from extproc.journal.records import EventKind
from tests.unit.telemetry.events import BEGIN_MS, FIRST, HERE, INTERRUPTED, REFUSED, REPEATED, REQUEST, admitted, happened

HOSTILE = '"><script>window.harmed = 1</script><img src=x onerror="window.harmed = 2"><style>body{display:none}</style>'
PHONE, DESK = 360, 1200

FAINT_TEXT = Path(__file__).with_name("faint_text.js").read_text()


def told(browser) -> list[str]:
    """Whatever the browser complained about."""
    logged = [entry["entry"]["text"] for entry in browser.seen("Log.entryAdded")]
    thrown = [str(each["exceptionDetails"]) for each in browser.seen("Runtime.exceptionThrown")]
    return logged + thrown + [str(each) for each in browser.seen("Page.javascriptDialogOpening")]


def as_request(events, request: str):
    return [happened(e.kind, e.at_ms - BEGIN_MS, e.attempt_id, e.replica, request=request, **e.detail) for e in events]


@pytest.fixture
def busy(admin):
    """A processor in the middle of trouble."""
    for place, verdict in enumerate(Verdict):
        admin.reports[f"10.0.0.{place}:8000"] = {"verdict": str(verdict), "evidence": "2 running, 107 steps in 10 s", "for_s": 12}
    admin.reports["10.0.0.1:8000"] = {"verdict": "hung", "evidence": "2 running, nothing moved in 61 s", "for_s": 61}
    admin.tell(as_request(REPEATED, "req_01REPEATED"))
    admin.tell(as_request(REFUSED, "req_01REFUSED"))
    admin.tell(as_request(REPEATED[:4], "req_01FENCING"))
    admin.tell(as_request(INTERRUPTED[:3], "req_01DECODE"))
    admin.tell(INTERRUPTED)
    admin.resolver.resolve(initial_metadata="mode: sideways", route_name="chat")
    return admin


async def test_page_needs_nothing_but_its_own_server_and_no_script(busy, browser) -> None:
    await browser.open(busy.url)
    asked = {each["request"]["url"] for each in browser.seen("Network.requestWillBeSent")}
    assert asked - {"about:blank"} <= {f"{busy.url}/", f"{busy.url}/status.css"}
    assert await browser.js("document.scripts.length") == 0
    assert told(browser) == []
    assert await browser.js("getComputedStyle(document.querySelector('.badge.hung')).backgroundColor") != "rgba(0, 0, 0, 0)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
async def test_every_page_fits_the_screen_and_can_be_read(busy, browser, screenshots, scheme: str, width: int) -> None:
    await browser.look(width=width, scheme=scheme)
    for name, path in (("status", "/?refresh=off"), ("routes", "/routes"), ("request", f"/requests/{REQUEST}")):
        await browser.open(busy.url + path)
        await browser.screenshot(screenshots / f"{name}-{scheme}-{width}.png")
        assert await browser.js("document.documentElement.scrollWidth") <= width, path
        assert await browser.js(FAINT_TEXT) == [], path


async def test_dark_and_light_are_different(busy, browser) -> None:
    papers = []
    for scheme in ("light", "dark"):
        await browser.look(width=DESK, scheme=scheme)
        await browser.open(busy.url)
        papers.append(await browser.js("getComputedStyle(document.body).backgroundColor"))
    assert papers[0] != papers[1]


async def test_stranger_can_explain_an_interrupted_request_from_the_page_alone(busy, browser) -> None:
    await browser.look(width=DESK)
    await browser.open(f"{busy.url}/?refresh=off")
    assert "The answer broke off: the connection to the replica was lost." in await browser.text()
    await browser.click(f'.decisions a[href="/requests/{REQUEST}"]')
    story = await browser.text()
    for expected in (
        "Interrupted after 12 output tokens",
        "Attempt 1 was sent to replica 10.0.0.1:8000.",
        "From here on the request may not be repeated.",
        "connection closed by the peer in the response body",
        "The client has 12 output tokens, then got one error event (upstream_decode_interrupted)",
        "Because part of it was delivered, the request was not repeated.",
    ):
        assert expected in story


async def test_timeline_shows_the_boundary_before_the_end_and_the_fence_after_the_failure(busy, browser) -> None:
    left = "document.querySelector({!r}).getBoundingClientRect().x"
    await browser.open(f"{busy.url}/requests/{REQUEST}")
    boundary, end = [await browser.js(left.format(f".mark.{kind} circle")) for kind in ("boundary", "bad-end")]
    assert boundary < end
    await browser.open(f"{busy.url}/requests/req_01REPEATED")
    attempt, fence = [await browser.js(left.format(f".bar.{kind}")) for kind in ("attempt", "fence")]
    assert attempt < fence
    assert await browser.js("document.querySelector('.bar.fence title').textContent") == "fence: 250 ms"


async def test_request_is_found_by_its_id(busy, browser) -> None:
    await browser.open(f"{busy.url}/?refresh=off")
    await browser.js("document.querySelector('#id').value = ' req_01REFUSED '")
    await browser.click(".top form button")
    assert await browser.js("location.pathname") == "/requests/req_01REFUSED"
    assert "it is not proved that the failed attempt has stopped" in await browser.text()


async def test_page_renews_itself_until_it_is_held_still(busy, browser) -> None:
    await browser.open(busy.url)
    busy.tell([happened(EventKind.ENDED, 950, request="req_01DECODE", outcome="cancelled", reason="client_gone")])
    await browser.seen_more("Page.loadEventFired", len(browser.seen("Page.loadEventFired")))
    assert "The client left" in await browser.text()
    await browser.click('a[href="/?refresh=off"]')
    assert await browser.js("document.querySelector('meta[http-equiv=refresh]')") is None


async def test_hostile_text_is_shown_and_does_nothing(admin, browser) -> None:
    admin.tell(
        [
            admitted(model=HOSTILE, route=HOSTILE),
            happened(EventKind.ATTEMPT_STARTED, 1, FIRST, HERE, number=1),
            happened(EventKind.ATTEMPT_FAILED, 5, FIRST, HERE, cause=HOSTILE, evidence=HOSTILE, fencing="confirm"),
        ]
    )
    admin.reports["10.0.0.1:8000"] = {"verdict": HOSTILE, "evidence": HOSTILE, "for_s": 1}
    admin.resolver.resolve(initial_metadata=f"{{'{HOSTILE}': 1}}", route_name=HOSTILE)
    for path in ("/?refresh=off", "/routes", f"/requests/{REQUEST}"):
        await browser.open(admin.url + path)
        assert await browser.js("window.harmed") is None
        assert await browser.js("document.scripts.length + document.images.length") == 0
        assert await browser.js("getComputedStyle(document.body).display") != "none"
        assert "<script>window.harmed = 1</script>" in await browser.text()
    assert told(browser) == []


async def test_idle_processor_says_so(admin, browser, screenshots) -> None:
    admin.roster.become(())
    await browser.look(width=DESK)
    await browser.open(f"{admin.url}/?refresh=off")
    await browser.screenshot(screenshots / "idle.png")
    shown = await browser.text()
    assert "No replica is known." in shown
    assert "Nothing is running." in shown

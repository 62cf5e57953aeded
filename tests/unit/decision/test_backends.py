"""Same process, its successor, or several servers behind one address (R24, R25)."""

import pytest

from extproc.decision.backends import STARTS_KEPT, Backend, Backends
from extproc.decision.exposition import Page
from tests.unit.decision.watched import engine, page


def run(*pages: Page) -> list[Backend]:
    backends, seen = Backends(), []
    for one in pages:
        backends, backend = backends.after(one)
        seen.append(backend)
    return seen


FIRST, SAME, RESTARTED, SEVERAL = Backend.FIRST, Backend.SAME, Backend.RESTARTED, Backend.SEVERAL


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([page(started=1), page(started=1, steps=501)], [FIRST, SAME]),
        ([page(started=1), page(started=2), page(started=3)], [FIRST, RESTARTED, RESTARTED]),
        ([page(started=1), page(started=2), page(started=1)], [FIRST, RESTARTED, SEVERAL]),
        ([page(started=2), page(started=1)], [FIRST, SEVERAL]),
        ([page(started=None), page(started=None)], [FIRST, SAME]),
        ([page(started=None, steps=9), page(started=None, steps=8)], [FIRST, RESTARTED]),
        ([page(started=None, steps=9), page(started=None, steps=8), page(started=None, steps=7)], [FIRST, RESTARTED, SEVERAL]),
        ([page(started=1), page(started=None)], [FIRST, RESTARTED]),
        ([page(started=1), page(started=None), page(started=1)], [FIRST, RESTARTED, SEVERAL]),
        ([page(started=1, steps=9), page(started=1, steps=8)], [FIRST, RESTARTED]),
        ([page(started=1, steps=None), page(started=1, steps=8)], [FIRST, SAME]),
        ([page(started=1, running=5, kv_cache_use=1), page(started=1)], [FIRST, SAME]),
        ([page(engine("0")), page(engine("0"), engine("1"))], [FIRST, SAME]),
        ([page(engine("0"), engine("1", steps=9)), page(engine("0"), engine("1", steps=8))], [FIRST, RESTARTED]),
        ([page(engine(model="a")), page(engine(model="b"))], [FIRST, RESTARTED]),
    ],
)
def test_whose_page_it_is(pages: list[Page], expected: list[Backend]):
    assert run(*pages) == expected


def test_an_outage_forgives_earlier_drops():
    backends, _ = Backends().after(page(started=None, steps=9))
    backends, _ = backends.after(page(started=None, steps=8))
    backends, backend = backends.after_outage().after(page(started=None, steps=7))
    assert (backend, backends.drops, backends.was_away) == (RESTARTED, 0, False)


def test_an_outage_of_the_same_process_is_no_restart_where_start_times_tell():
    backends, _ = Backends().after(page(started=1))
    assert backends.after_outage().after(page(started=1))[1] is SAME


def test_nothing_is_settled_before_the_first_page():
    assert not Backends().is_settled


def test_the_start_times_that_are_remembered_are_bounded():
    backends = Backends()
    for start in range(100):
        backends, _ = backends.after(page(started=float(start)))
    assert len(backends.starts_seen) == STARTS_KEPT

"""The catalogue: every point once, in the order of its seed, and each can really be brought about."""

from collections import Counter

import pytest

from extproc.faults.expectations import Ending, expected_endings
from extproc.faults.observation import Trial
from extproc.faults.points import KINDS, Kind, Point, Position, Scope, catalogue, in_order, point_of, select
from extproc.faults.rounds import body_of, faults_of
from extproc.sim.faults import FaultBook
from extproc.sse.dialects import Dialect

POINTS = catalogue()


def test_there_are_at_least_a_thousand_and_no_two_are_the_same() -> None:
    assert len({point.key for point in POINTS}) == len(POINTS) >= 1_000


def test_every_kind_meets_every_api_streamed_or_not() -> None:
    seen = {(point.kind, point.api, point.stream) for point in POINTS}
    missing = {(kind, api, stream) for kind in Kind for api in Dialect for stream in (True, False)} - seen
    # [DONE] without a finish: only streams have such a mark, and the responses API has none.
    assert {(kind, stream) for kind, api, stream in missing if api is not Dialect.RESPONSES} == {(Kind.DONE_ONLY, False)}
    assert {kind for kind, api, _ in missing if api is Dialect.RESPONSES} == {Kind.DONE_ONLY}


def test_order_follows_from_the_seed() -> None:
    assert in_order(POINTS, 7) == in_order(reversed(POINTS), 7)
    assert in_order(POINTS, 7) != in_order(POINTS, 8)
    assert Counter(in_order(POINTS, 7)) == Counter(POINTS)


def test_selection_is_by_globs_over_keys() -> None:
    chosen = select(POINTS, ["reset.chat.stream.*", "killed.*.whole.*"])
    assert {(point.kind, point.stream) for point in chosen} == {(Kind.RESET, True), (Kind.KILLED, False)}
    assert select(POINTS, []) == list(POINTS)


@pytest.mark.parametrize("kind", Kind)
def test_every_fault_of_a_point_is_possible_and_reaches_its_request(kind: Kind, tmp_path) -> None:
    for point in (point for point in POINTS if point.kind is kind):
        trial = Trial(point=point, number=1)
        book = FaultBook(tmp_path)
        book.arm(faults_of(trial))
        headers = {"x-request-id": trial.name}
        claimed = [book.claim(stream=point.stream, body=body_of(point), headers=headers) for _ in range(point.attempt)]
        assert all(claimed) is (kind is not Kind.NOTHING), point.key


@pytest.mark.parametrize("point", POINTS[::97], ids=lambda point: point.key)
def test_a_key_names_its_point(point: Point) -> None:
    assert point_of(point.key) == point


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(LookupError, match=r"no fault point 'reset.chat'"):
        point_of("reset.chat")


def test_nothing_is_repeated_after_a_delivery_that_is_certain() -> None:
    held = [point for point in POINTS if KINDS[point.kind].scope is Scope.REPLICA and point.position is Position.AFTER_BOUNDARY]
    assert {expected_endings(point) for point in held} == {frozenset({Ending.INTERRUPTED})}


def test_no_point_allows_what_is_neither_an_answer_nor_an_error() -> None:
    assert not [point.key for point in POINTS if Ending.UNREADABLE in expected_endings(point)]

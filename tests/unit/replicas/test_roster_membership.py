"""A roster whose replicas come and go: who gets new attempts, and what stays counted."""

import pytest

from extproc.replicas.roster import Replica, Roster, Standing

A, B = (Replica(destination=f"{name}:1", url=f"http://{name}:1") for name in "ab")


def test_a_newcomer_gets_attempts_and_one_that_left_does_not() -> None:
    roster = Roster([A])
    roster.become([B])
    assert roster.replicas == (B,)
    assert {roster.choose() for _ in range(3)} == {B}


def test_a_withheld_replica_keeps_its_running_attempts_and_gets_no_new_ones() -> None:
    roster = Roster([A])
    roster.acquire(A)
    roster.become([A], withheld=[A.destination])
    assert roster.choose() is None
    assert roster.running(A.destination) == 1
    assert roster.replicas == (A,)
    roster.become([A])
    assert roster.choose() == A


def test_attempts_on_a_replica_that_left_are_still_released() -> None:
    roster = Roster([A])
    roster.acquire(A)
    roster.become([B])
    assert roster.running(A.destination) == 1
    roster.release(A)
    roster.become([B])
    assert roster.running(A.destination) == 0


def test_healths_word_outlives_a_new_picture() -> None:
    roster = Roster([A])
    roster.set_standing(A.destination, Standing.WITHHELD)
    roster.become([A, B])
    assert roster.standing(A.destination) is Standing.WITHHELD
    assert {roster.choose() for _ in range(3)} == {B}
    roster.become([B])
    roster.become([A, B])
    assert roster.standing(A.destination) is Standing.PLACEABLE


def test_a_replica_in_doubt_is_chosen_only_when_no_other_is_left() -> None:
    roster = Roster([A, B])
    roster.acquire(B)
    roster.doubt(A.destination)
    assert {roster.choose() for _ in range(3)} == {B}, "however busy the other is"
    assert roster.choose([B.destination]) == A
    roster.doubt(B.destination)
    assert roster.choose() == A


def test_a_last_resort_comes_before_one_in_doubt() -> None:
    roster = Roster([A, B])
    roster.set_standing(B.destination, Standing.LAST_RESORT)
    roster.doubt(A.destination)
    assert {roster.choose() for _ in range(3)} == {B}
    roster.set_standing(B.destination, Standing.WITHHELD)
    assert roster.choose() == A


@pytest.mark.parametrize("standing", [Standing.PLACEABLE, Standing.LAST_RESORT])
def test_healths_next_look_has_the_last_word(standing: Standing) -> None:
    roster = Roster([A, B])
    roster.doubt(A.destination)
    roster.set_standing(B.destination, standing)
    assert roster.is_doubted(A.destination)
    roster.set_standing(A.destination, standing)
    assert not roster.is_doubted(A.destination)
    assert {roster.choose() for _ in range(4)} == {A, B}


def test_doubt_outlives_a_new_picture_and_leaves_with_its_replica() -> None:
    roster = Roster([A, B])
    roster.doubt(A.destination)
    roster.become([A, B])
    assert roster.is_doubted(A.destination)
    roster.become([B])
    roster.become([A, B])
    assert not roster.is_doubted(A.destination)
    roster.doubt("c:1")
    assert not roster.is_doubted("c:1")

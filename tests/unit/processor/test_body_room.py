"""Bodies share one room, and every share comes back whole."""

import asyncio

import pytest

from extproc.processor.body_room import BodyRoom, BodyShare
from extproc.processor.intake import RequestBody, RequestRejected, read_body
from extproc.processor.protobuf import HttpBody, ProcessingRequest
from tests.unit.processor.stage import Stage


def test_what_one_has_taken_is_not_there_for_another() -> None:
    room = BodyRoom(10)
    one, other = BodyShare(room), BodyShare(room)
    assert [one.take(6), other.take(5), other.take(4), one.take(1)] == [True, False, True, False]
    assert room.taken_bytes == 10


def test_a_share_is_given_back_once() -> None:
    room = BodyRoom(10)
    one, other = BodyShare(room), BodyShare(room)
    one.take(6)
    other.take(4)
    one.give_back()
    one.give_back()
    assert room.taken_bytes == 4


def test_a_body_that_is_let_go_of_leaves_its_room() -> None:
    room = BodyRoom(10)
    share = BodyShare(room)
    share.take(3)
    body = RequestBody(b"abc", share)
    body.release()
    assert (body.data, room.taken_bytes) == (b"", 0)


async def test_a_body_without_room_is_turned_away_as_overload() -> None:
    room = BodyRoom(5)
    pieces = [ProcessingRequest(request_body=HttpBody(body=b"abc", end_of_stream=at == 1)) for at in range(2)]

    async def read() -> ProcessingRequest | None:
        return pieces.pop(0)

    share = BodyShare(room)
    with pytest.raises(RequestRejected, match="as it may") as refusal:
        await read_body(read, 100, share)
    assert refusal.value.code == "overloaded"
    assert room.taken_bytes == 3
    share.give_back()
    assert room.taken_bytes == 0


async def test_a_request_that_ends_before_its_boundary_leaves_no_share_behind() -> None:
    stage = Stage()
    _, task = stage.ask()
    await stage.attempts.opened.get()
    assert stage.service.bodies.taken_bytes > 0
    task.cancel()
    await asyncio.wait([task])
    assert stage.service.bodies.taken_bytes == 0

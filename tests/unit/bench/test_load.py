"""The load generator counts right, wherever the bytes of an answer are cut."""

import asyncio
from typing import cast

import pytest

from bench import upstream
from bench.load import Client, Result

DELTAS = 3
ANSWER = upstream.HEAD + upstream.ROLE + upstream.DELTA * DELTAS + upstream.END


class RecordingTransport:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def sent_request(result: Result) -> Client:
    client = Client(result, DELTAS)
    client.connection_made(cast("asyncio.Transport", RecordingTransport()))
    client.send(b"request")
    return client


async def test_every_delta_is_counted_wherever_the_answer_is_cut() -> None:
    for cut in range(len(ANSWER)):
        result = Result()
        client = sent_request(result)
        client.data_received(ANSWER[:cut])
        client.data_received(ANSWER[cut:])
        assert (cut, await client.done, result.deltas, len(result.ttft_ms)) == (cut, "", DELTAS, 1)


async def test_event_that_is_cut_by_http_chunks_is_counted_once() -> None:
    client = sent_request(Result())
    client.data_received(upstream.HEAD + b"8\r\ndata: x\n\r\n1\r\n\n\r\n2\r\n: \r\n2\r\n\n\n\r\n")
    assert client.events == 2


async def test_role_chunk_is_not_a_first_token() -> None:
    result = Result()
    sent_request(result).data_received(upstream.HEAD + upstream.ROLE)
    assert (result.deltas, result.ttft_ms) == (0, [])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (upstream.HEAD + upstream.ROLE + b"0\r\n\r\n", "1 events instead of 6"),
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", "status 503"),
    ],
)
async def test_answer_that_is_not_whole_is_a_failure(answer: bytes, reason: str) -> None:
    client = sent_request(Result())
    client.data_received(answer)
    assert await client.done == reason


async def test_lost_connection_is_a_failure() -> None:
    client = sent_request(Result())
    client.data_received(ANSWER[:-1])
    client.connection_lost(None)
    assert await client.done == "connection lost (None)"

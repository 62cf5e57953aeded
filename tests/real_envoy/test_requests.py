"""What of a client's request reaches a replica, and what is refused before it does, through the real gateway."""

import gzip
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from extproc.app.demonstration.apis import PATHS
from extproc.contract import headers as names
from extproc.sse.dialects import Dialect
from tests.real_envoy.acts import GOOD
from tests.real_envoy.h2_client import H2Client
from tests.real_envoy.stage import STREAMED_CHAT, WHOLE_CHAT, Stage, open_stage
from tests.real_envoy.wire import TEST_MARK, encode_chunk, encode_head

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = PATHS[Dialect.CHAT]
SIZES = [32_768, 32_769, 1_048_576, 1_048_577, 20_000_000]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("gateway")) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(gateway_stage: Stage) -> AsyncIterator[Stage]:
    yield gateway_stage
    gateway_stage.leave_nothing()


@pytest_asyncio.fixture(loop_scope="module")
async def h2_client(stage: Stage) -> AsyncIterator[H2Client]:
    client = await H2Client.connect(stage.front)
    yield client
    client.close()


def body_of(size: int) -> bytes:
    """A streamed chat request of exactly ``size`` bytes, with spaces and escapes that no encoder would write again."""
    start, end = b'{ "model":"m",  "stream" : true, "messages":[{"role":"user","content":"\\u00e9\xc3\xa9', b'" }]}  '
    return start + b"x" * (size - len(start) - len(end)) + end


# --- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["length", "chunked", "HTTP/2"])
async def test_en_08_a_body_of_any_size_arrives_byte_for_byte_on_every_attempt(
    stage: Stage, h2_client: H2Client, size: int, form: str
) -> None:
    body = body_of(size)
    match form:
        case "length":
            await stage.ask(body)
        case "chunked":
            client = await stage.connect()
            await client.write(
                encode_head(f"POST {CHAT} HTTP/1.1", [("host", "g"), ("x-test", "1"), ("transfer-encoding", "chunked")])
            )
            await client.write(
                b"".join(encode_chunk(body[at : at + 65_521]) for at in range(0, size, 65_521)) + encode_chunk(b"")
            )
        case "HTTP/2":
            await h2_client.ask(body)
    first = await stage.attempt()
    first.reset()
    second = await stage.attempt()
    await second.stream(GOOD)
    for attempt in (first, second):
        assert attempt.body == body
        assert attempt.head.all("content-length") == [str(size)]
        assert attempt.head.all("transfer-encoding") == []


async def test_a_body_in_the_smallest_pieces_is_one_body(stage: Stage) -> None:
    client = await stage.connect()
    await client.write(encode_head(f"POST {CHAT} HTTP/1.1", [("host", "g"), ("x-test", "1"), ("transfer-encoding", "chunked")]))
    for byte in STREAMED_CHAT:
        await client.write(encode_chunk(bytes([byte])))
    await client.write(encode_chunk(b""))
    attempt = await stage.attempt()
    await attempt.stream(GOOD)
    assert attempt.body == STREAMED_CHAT


BAD_BODIES = {
    "empty": (b"", "the request body is empty"),
    "one byte": (b"1", "JSON but not an object"),
    "list": (b"[{}]", "JSON but not an object"),
    "no JSON": (b"model=m&stream=true", "not JSON: Expecting value: line 1 column 1"),
    "cut": (STREAMED_CHAT[:-1], "not JSON"),
}


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(("body", "problem"), BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_body_that_is_no_json_object_is_a_400_that_says_so(
    stage: Stage, dialect: Dialect, body: bytes, problem: str
) -> None:
    client = await stage.ask(body, path=PATHS[dialect])
    answer = await client.answer()
    assert (answer.status, answer.head.get("content-type")) == (400, "application/json")
    error = answer.json["error"]
    assert problem in error["message"]
    assert (error["code"], error["partial_output"], error["attempts"]) == ("invalid_request_body", False, 0)
    assert answer.request_id == error["request_id"]
    assert (answer.json.get("type") == "error") == (dialect is Dialect.MESSAGES)


async def test_a_chunked_body_of_nothing_is_empty_too(stage: Stage) -> None:
    client = await stage.connect()
    head = encode_head(f"POST {CHAT} HTTP/1.1", [("host", "g"), ("transfer-encoding", "chunked")])
    await client.write(head + encode_chunk(b""))
    assert "empty" in (await client.answer()).json["error"]["message"]


async def test_an_encoded_body_is_refused_before_it_is_sent(stage: Stage) -> None:
    client = await stage.connect()
    head = [("host", "g"), ("content-encoding", "gzip"), ("content-length", "1000000")]
    await client.write(encode_head(f"POST {CHAT} HTTP/1.1", head))
    answer = await client.answer()
    assert (answer.status, answer.json["error"]["code"]) == (415, "unsupported_content_encoding")
    assert "gzip" in answer.json["error"]["message"]


async def test_expect_100_is_answered_and_goes_no_further(stage: Stage) -> None:
    client = await stage.connect()
    head = [("host", "g"), ("x-test", "1"), ("expect", "100-continue"), ("content-length", str(len(STREAMED_CHAT)))]
    await client.write(encode_head(f"POST {CHAT} HTTP/1.1", head))
    await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
    client.received.clear()
    await client.write(STREAMED_CHAT)
    attempt = await stage.attempt()
    assert attempt.head.get("expect") is None
    await attempt.stream(GOOD)
    assert (await client.answer()).body == GOOD


async def test_trailers_end_a_body_and_go_no_further(stage: Stage, h2_client: H2Client) -> None:
    number = await h2_client.ask(STREAMED_CHAT, trailers=(("x-checksum", "1"), ("x-deltafence-token", "forged")))
    attempt = await stage.attempt()
    assert attempt.body == STREAMED_CHAT
    assert {"x-checksum", names.TOKEN}.isdisjoint(name for name, _ in attempt.head.headers)
    await attempt.stream(GOOD)
    assert (await h2_client.answer(number)).body == GOOD


async def test_trailers_of_http_1_go_no_further_either(stage: Stage) -> None:
    client = await stage.connect()
    head = encode_head(f"POST {CHAT} HTTP/1.1", [("host", "g"), ("x-test", "1"), ("transfer-encoding", "chunked")])
    await client.write(head + encode_chunk(STREAMED_CHAT) + b"0\r\nx-checksum: 1\r\n\r\n")
    attempt = await stage.attempt()
    assert (attempt.body, attempt.head.get("x-checksum")) == (STREAMED_CHAT, None)
    await attempt.stream(GOOD)
    assert (await client.answer()).body == GOOD


# --- heads -------------------------------------------------------------------------------------------------------------

FORGED = [
    (names.REQUEST_ID, "req_forged"),
    (names.ATTEMPT_ID, "att_forged"),
    (names.BOOT_ID, "forged"),
    (names.VALID_UNTIL_MS, "99999999999999"),
    ("X-Deltafence-Token", "forged"),
    ("x-deltafence-anything", "forged"),
    (names.DESTINATION, "192.0.2.1:1"),
    (names.SERVED_BY, "forged"),
    (names.EGRESS_FLAGS, "UF"),
    ("x-envoy-retry-on", "5xx"),
    ("x-envoy-max-retries", "9"),
    ("x-envoy-upstream-rq-timeout-ms", "1"),
    ("X-Envoy-Original-Path", "/elsewhere"),
]
OWN = [
    ("authorization", "Bearer k"),
    ("x-request-id", "mine"),
    ("user-agent", "test"),
    ("idempotency-key", "k1"),
    ("x-same", "1"),
    ("x-same", "2"),
]
NEIGHBOURS = [
    ("connection", "close, x-listed"),
    ("x-listed", "1"),
    ("keep-alive", "timeout=5"),
    ("proxy-connection", "close"),
    ("te", "trailers"),
]


async def test_a_generations_head_arrives_without_what_is_not_the_clients_to_say(stage: Stage) -> None:
    client = await stage.ask(STREAMED_CHAT, *FORGED, *OWN, *NEIGHBOURS, ("accept-encoding", "gzip, br"))
    attempt = await stage.attempt()
    await attempt.stream(GOOD)
    answer = await client.answer()

    received = attempt.head
    assert "forged" not in str(received.headers)
    assert not [name for name, _ in received.headers if name.startswith("x-envoy-")]
    assert {name for name, _ in NEIGHBOURS}.isdisjoint(name for name, _ in received.headers)
    assert {name: received.all(name) for name, _ in OWN} == {
        name: [value for key, value in OWN if key == name] for name, _ in OWN
    }
    assert received.all("accept-encoding") == ["identity"]
    assert received.all(names.REQUEST_ID) == [answer.request_id]
    assert (
        received.get(
            names.ATTEMPT_ID,
        )
        == (await stage.facts(answer.request_id))["attempts"][0]["attempt_id"]
    )
    assert answer.request_id.startswith("req_0")


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/embeddings"), ("GET", "/v1/models/m"), ("GET", CHAT)])
async def test_an_ordinary_requests_head_arrives_without_it_too(stage: Stage, method: str, path: str) -> None:
    client = await stage.ask(b"", *FORGED, *OWN, ("accept-encoding", "gzip, br"), path=path, method=method)
    request = await stage.attempt()
    await request.answer(b"{}")
    assert (await client.answer()).body == b"{}"
    assert "forged" not in str(request.head.headers)
    assert {name.lower() for name, _ in FORGED}.isdisjoint(name for name, _ in request.head.headers)
    assert request.head.all("accept-encoding") == ["gzip, br"]


HEADERS_MAX = 100
HEAD_BYTES_MAX = 60 * 1024
"""Envoy's defaults, which the front has."""


@pytest.mark.parametrize(
    "more",
    [
        [(f"x-{number}", "v") for number in range(HEADERS_MAX - len(("host", TEST_MARK, "content-length")))],
        [("x-long", "x" * (HEAD_BYTES_MAX - 100))],
    ],
    ids=["many", "long"],
)
async def test_the_largest_head_that_the_front_takes_reaches_a_replica(stage: Stage, more: list[tuple[str, str]]) -> None:
    """The processor adds headers of its own; the egress may not refuse what that makes of it."""
    client = await stage.ask(STREAMED_CHAT, *more)
    attempt = await stage.attempt()
    assert set(more) <= set(attempt.head.headers)
    await attempt.stream(GOOD)
    assert (await client.answer()).body == GOOD


async def test_query_and_host_are_kept(stage: Stage) -> None:
    client = await stage.connect()
    head = [("host", "models.example:8443"), ("x-test", "1"), ("content-length", str(len(WHOLE_CHAT)))]
    await client.write(encode_head(f"POST {CHAT}?api-version=1&x=%2F%25 HTTP/1.1", head) + WHOLE_CHAT)
    attempt = await stage.attempt()
    assert attempt.path == f"{CHAT}?api-version=1&x=%2F%25"
    assert attempt.head.all("host") == ["models.example:8443"]
    await attempt.answer(b"{}", status="400 Bad Request")
    await client.answer()


@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "TLS/1.0"])
async def test_an_upgrade_never_reaches_a_replica(stage: Stage, upgrade: str) -> None:
    """Envoy refuses what it might have to do, and leaves out what it never does."""
    more = [("connection", "upgrade, http2-settings"), ("upgrade", upgrade), ("http2-settings", "AAMAAABkAARAAAAAAAIAAAAA")]
    client = await stage.ask(STREAMED_CHAT, *more)
    if upgrade == "h2c":
        attempt = await stage.attempt()
        assert {"upgrade", "connection", "http2-settings"}.isdisjoint(name for name, _ in attempt.head.headers)
        await attempt.stream(GOOD)
        assert (await client.answer()).body == GOOD
    else:
        assert (await client.answer()).status == 403


# --- what is no generation ---------------------------------------------------------------------------------------------

ORDINARY = {
    "GET": ("GET", CHAT, b""),
    "DELETE": ("DELETE", "/v1/responses/resp_1", b""),
    "GET of a response": ("GET", "/v1/responses/resp_1?stream=true", b""),
    "OPTIONS": ("OPTIONS", PATHS[Dialect.MESSAGES], b""),
    "PUT": ("PUT", PATHS[Dialect.COMPLETIONS], b"{}"),
    "count_tokens": ("POST", "/v1/messages/count_tokens", b'{"model" : "m"}'),
    "render": ("POST", "/v1/chat/completions/render", b"{}"),
    "embeddings": ("POST", "/v1/embeddings?x=1", b"no JSON at all"),
    "encoded": ("POST", "/v1/embeddings", gzip.compress(b"{}")),
}


@pytest.mark.parametrize(("method", "path", "body"), ORDINARY.values(), ids=ORDINARY)
async def test_what_is_no_generation_passes_untouched(stage: Stage, method: str, path: str, body: bytes) -> None:
    client = await stage.ask(body, ("content-encoding", "gzip"), method=method, path=path)
    request = await stage.attempt()
    encoded = gzip.compress(b"answer")
    await request.answer(encoded, ("content-encoding", "gzip"), ("x-own", "1"), status="203 Own", content_type="text/x")
    answer = await client.answer()
    assert (request.method, request.path, request.body) == (method, path, body)
    assert request.head.get("content-encoding") == "gzip"
    assert (request.request_id, request.attempt_id, answer.request_id, answer.attempts) == ("", "", "", 0)
    assert (answer.status, answer.body, answer.head.get("x-own")) == (203, encoded, "1")


async def test_a_head_request_passes_untouched(stage: Stage) -> None:
    client = await stage.ask(b"", method="HEAD")
    request = await stage.attempt()
    await request.write(encode_head("HTTP/1.1 200 OK", [("content-length", "17")]))
    await client.until(b"content-length: 17\r\n")
    assert (request.method, request.attempt_id) == ("HEAD", "")

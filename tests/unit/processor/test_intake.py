"""What is read of a request, and what is refused with a reason (R16, CASES EN-05, EN-08, EN-11)."""

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from extproc.contract.errors import ErrorCode
from extproc.processor.intake import (
    DATA_URL_BYTES,
    MODEL_CHARACTERS_MAX,
    ClientGone,
    RequestRejected,
    check_head,
    choices_asked,
    forwardable_headers,
    prompt_bytes,
    read_body,
    read_request,
)
from extproc.processor.messages import RequestHeaders
from extproc.processor.protobuf import HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest
from extproc.sse.dialects import Dialect


def head(*headers: tuple[str, str]) -> RequestHeaders:
    return RequestHeaders(
        method="POST", path="/v1/chat/completions?x=1", authority="gateway", headers=headers, end_of_stream=False
    )


class Messages:
    def __init__(self, messages: Iterable[ProcessingRequest]) -> None:
        self.waiting = list(messages)

    async def read(self) -> ProcessingRequest | None:
        return self.waiting.pop(0) if self.waiting else None


def piece(body: bytes, *, end: bool = False) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=end))


async def test_body_is_every_piece_in_order() -> None:
    assert await read_body(Messages([piece(b"ab"), piece(b""), piece(b"c", end=True)]).read, 10) == b"abc"


async def test_trailers_end_the_body() -> None:
    trailers = ProcessingRequest(request_trailers=HttpTrailers())
    assert await read_body(Messages([piece(b"ab"), trailers]).read, 10) == b"ab"


async def test_a_stream_that_ends_inside_the_body_is_a_client_that_left() -> None:
    with pytest.raises(ClientGone):
        await read_body(Messages([piece(b"ab")]).read, 10)


async def test_one_byte_above_the_limit_is_refused_and_the_limit_itself_is_not() -> None:
    assert await read_body(Messages([piece(b"12345"), piece(b"6", end=True)]).read, 6) == b"123456"
    with pytest.raises(RequestRejected, match="larger than 5 bytes") as refused:
        await read_body(Messages([piece(b"12345"), piece(b"6", end=True)]).read, 5)
    assert refused.value.code is ErrorCode.REQUEST_TOO_LARGE


async def test_en_05_a_message_that_does_not_belong_there_fails_clearly() -> None:
    with pytest.raises(RequestRejected, match="check processing_mode"):
        await read_body(Messages([ProcessingRequest(request_headers=HttpHeaders())]).read, 10)


@pytest.mark.parametrize("encoding", ["gzip", "BR", "zstd, identity"])
def test_encoded_request_is_refused_before_its_body(encoding: str) -> None:
    with pytest.raises(RequestRejected, match="send the body unencoded") as refused:
        check_head(head(("content-encoding", encoding)), 10)
    assert refused.value.code is ErrorCode.UNSUPPORTED_CONTENT_ENCODING


def test_declared_length_above_the_limit_is_refused_before_the_body() -> None:
    check_head(head(("content-length", "10"), ("content-encoding", "identity")), 10)
    with pytest.raises(RequestRejected, match="content-length: 11"):
        check_head(head(("content-length", "11")), 10)


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[1]", b'"text"', b"{", b"\xff\xfe"])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestRejected) as refused:
        read_request(Dialect.CHAT, head(), body)
    assert refused.value.code is ErrorCode.INVALID_REQUEST_BODY


def test_deep_nesting_is_refused_not_a_crash() -> None:
    with pytest.raises(RequestRejected):
        read_request(Dialect.CHAT, head(), b'{"a":' + b"[" * 200_000)


@pytest.mark.parametrize("encode", [str.encode, lambda text: text.encode("utf-16"), lambda text: text.encode("utf-32")])
def test_what_vllm_reads_is_read(encode: object) -> None:
    assert callable(encode)
    body = encode('{"model": "m", "stream": true, "temperature": NaN, "n": 3}')
    request = read_request(Dialect.CHAT, head(), body)
    assert (request.model, request.stream, request.choices, request.body.data) == ("m", True, 3, body)


@pytest.mark.parametrize(("value", "streams"), [(True, True), (False, False), ("true", False), (1, False), (None, False)])
def test_only_true_asks_for_a_stream(value: object, streams: bool) -> None:
    assert read_request(Dialect.CHAT, head(), json.dumps({"stream": value}).encode()).stream is streams


@pytest.mark.parametrize(
    ("dialect", "document", "choices"),
    [
        (Dialect.CHAT, {}, 1),
        (Dialect.CHAT, {"n": 2}, 2),
        (Dialect.CHAT, {"n": 0}, 1),
        (Dialect.CHAT, {"n": True}, 1),
        (Dialect.CHAT, {"n": 2, "prompt": ["a", "b"]}, 2),
        (Dialect.COMPLETIONS, {"prompt": "a", "n": 2}, 2),
        (Dialect.COMPLETIONS, {"prompt": ["a", "b"], "n": 2}, 4),
        (Dialect.COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (Dialect.COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (Dialect.COMPLETIONS, {"prompt": []}, 1),
        (Dialect.MESSAGES, {"n": 4}, 1),
        (Dialect.RESPONSES, {"n": 4}, 1),
    ],
)
def test_choices_are_those_that_the_answer_will_have(dialect: Dialect, document: dict[str, object], choices: int) -> None:
    assert choices_asked(dialect, document) == choices


def test_prompt_estimate_counts_text_not_pictures() -> None:
    picture = "data:image/png;base64," + "A" * 1_000_000
    messages = [{"role": "user", "content": [{"type": "text", "text": "héllo"}, {"image_url": {"url": picture}}]}]
    counted = prompt_bytes({"messages": messages, "model": "ignored"})
    assert len("héllo".encode()) + DATA_URL_BYTES <= counted < DATA_URL_BYTES + 100


def test_prompt_estimate_counts_token_ids_and_tools() -> None:
    assert prompt_bytes({"prompt": [1] * 10}) == 20
    assert prompt_bytes({"tools": [{"name": "abcd"}], "system": "ef", "input": "gh"}) == 8


def test_only_what_may_go_on_goes_on() -> None:
    headers = (
        ("authorization", "Bearer key"),
        ("connection", "keep-alive, X-Private"),
        ("x-private", "1"),
        ("keep-alive", "5"),
        ("te", "trailers"),
        ("upgrade", "h2c"),
        ("transfer-encoding", "chunked"),
        ("content-length", "12"),
        ("accept-encoding", "gzip"),
        ("x-deltafence-request-id", "req_forged"),
        ("x-envoy-retry-on", "5xx"),
        ("x-gateway-destination-endpoint", "10.0.0.1:80"),
        ("x-custom", "a"),
        ("x-custom", "b"),
    )
    assert forwardable_headers(headers) == (("authorization", "Bearer key"), ("x-custom", "a"), ("x-custom", "b"))


@pytest.mark.parametrize(("said", "sent"), [("gateway", "gateway"), ("me@gateway:80", "gateway:80"), ("a@b@c", "c"), ("", "")])
def test_user_information_of_an_authority_goes_no_further(said: str, sent: str) -> None:
    request = read_request(Dialect.CHAT, replace(head(), authority=said), b"{}")
    assert request.authority == sent


def test_a_models_name_is_kept_short_and_goes_on_as_it_came() -> None:
    """Clients choose it, and ten thousand requests are remembered."""
    body = json.dumps({"model": "m" * 1_000_000}).encode()
    request = read_request(Dialect.CHAT, head(), body)
    assert request.model == "m" * MODEL_CHARACTERS_MAX
    assert request.body.data == body


def test_a_models_name_that_no_encoder_takes_is_written_down_in_characters_that_all_take() -> None:
    request = read_request(Dialect.CHAT, head(), rb'{"model": "a\ud83d"}')
    assert request.model == "a?"

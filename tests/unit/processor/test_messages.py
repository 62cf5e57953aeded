"""What we read out of Envoy's messages and what Envoy will read out of ours."""

import warnings
from collections.abc import Sequence

import pytest

from extproc.processor import messages, protobuf

# The oracle's generated code warns about itself under new pydantic, and would take names of ours for its own if they stood here.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `@model_validator`")
    import envoy_data_plane.envoy.config.core.v3 as core
    import envoy_data_plane.envoy.service.ext_proc.v3 as service
    import envoy_data_plane.envoy.type.v3 as envoy_type
    import envoy_data_plane.google.protobuf as well_known


def head_message(*headers: protobuf.HeaderValue, end_of_stream: bool = False) -> protobuf.ProcessingRequest:
    return protobuf.ProcessingRequest(
        request_headers=protobuf.HttpHeaders(headers=protobuf.HeaderMap(headers=headers), end_of_stream=end_of_stream)
    )


def raw(name: str, value: bytes) -> protobuf.HeaderValue:
    return protobuf.HeaderValue(key=name, raw_value=value)


def envoy_reads(message: protobuf.ProcessingResponse) -> service.ProcessingResponse:
    return service.ProcessingResponse.parse(message.SerializeToString())


def envoy_headers(*headers: tuple[str, bytes]) -> core.HeaderMap:
    return core.HeaderMap(headers=[core.HeaderValue(key=name, raw_value=value) for name, value in headers])


def test_pseudo_headers_are_fields_and_the_rest_keeps_its_order_and_duplicates() -> None:
    message = head_message(
        raw(":method", b"POST"),
        raw(":path", b"/v1/chat/completions?x=1"),
        raw(":authority", b"models.example"),
        raw(":scheme", b"https"),
        raw("B", b"2"),
        raw("a", b"1"),
        raw("b", b"3"),
        end_of_stream=True,
    )
    assert messages.request_headers(message) == messages.RequestHeaders(
        method="POST",
        path="/v1/chat/completions?x=1",
        authority="models.example",
        headers=(("b", "2"), ("a", "1"), ("b", "3")),
        end_of_stream=True,
    )


def test_header_value_is_read_from_either_form() -> None:
    message = head_message(raw("a", b"raw"), protobuf.HeaderValue(key="b", value="text"), protobuf.HeaderValue(key="c"))
    assert messages.request_headers(message).headers == (("a", "raw"), ("b", "text"), ("c", ""))


@pytest.mark.parametrize("value", [bytes(range(128, 256)), "né北".encode(), b"", b"\t plain"])
def test_any_header_value_survives_the_way_through_us(value: bytes) -> None:
    head = messages.request_headers(head_message(raw("x-any", value)))
    answered = envoy_reads(messages.answer_headers(200, head.headers)).streamed_immediate_response
    assert answered.headers_response.headers.headers[1] == core.HeaderValue(key="x-any", raw_value=value)


def test_head_without_pseudo_headers_reads_as_empty() -> None:
    head = messages.request_headers(head_message())
    assert (head.method, head.path, head.authority, head.headers, head.end_of_stream) == ("", "", "", (), False)


ATTRIBUTES = protobuf.ProcessingRequest.FromString(
    bytes(
        service.ProcessingRequest(
            attributes={
                "a.filter.with.nothing": well_known.Struct(),
                "envoy.filters.http.ext_proc": well_known.Struct(
                    fields={
                        "xds.route_name": well_known.Value(string_value="chat"),
                        "xds.route_metadata": well_known.Value(string_value='filter_metadata { key: "deltafence" }'),
                        "request.size": well_known.Value(number_value=3.0),
                        "request.id": well_known.Value(string_value=""),
                    }
                ),
            }
        )
    )
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("xds.route_name", "chat"),
        ("xds.route_metadata", 'filter_metadata { key: "deltafence" }'),
        ("request.id", ""),
        ("request.size", None),
        ("request.path", None),
    ],
)
def test_attribute_is_text_or_none(name: str, expected: str | None) -> None:
    assert messages.attribute(ATTRIBUTES, name) == expected


ENCODED: Sequence[tuple[protobuf.ProcessingResponse, service.ProcessingResponse]] = [
    (
        messages.passthrough_headers(),
        service.ProcessingResponse(request_headers=service.HeadersResponse(response=service.CommonResponse())),
    ),
    (
        messages.passthrough_body(b"{}", end_of_stream=False),
        service.ProcessingResponse(
            request_body=service.BodyResponse(
                response=service.CommonResponse(
                    body_mutation=service.BodyMutation(streamed_response=service.StreamedBodyResponse(body=b"{}"))
                )
            )
        ),
    ),
    (
        messages.passthrough_body(b"", end_of_stream=True),
        service.ProcessingResponse(
            request_body=service.BodyResponse(
                response=service.CommonResponse(
                    body_mutation=service.BodyMutation(streamed_response=service.StreamedBodyResponse(end_of_stream=True))
                )
            )
        ),
    ),
    (
        messages.passthrough_trailers(),
        service.ProcessingResponse(request_trailers=service.TrailersResponse(header_mutation=service.HeaderMutation())),
    ),
    (
        messages.answer_headers(200, [("content-type", "text/event-stream"), ("set-cookie", "a"), ("set-cookie", "b")]),
        service.ProcessingResponse(
            streamed_immediate_response=service.StreamedImmediateResponse(
                headers_response=service.HttpHeaders(
                    headers=envoy_headers(
                        (":status", b"200"),
                        ("content-type", b"text/event-stream"),
                        ("set-cookie", b"a"),
                        ("set-cookie", b"b"),
                    )
                )
            )
        ),
    ),
    (
        messages.answer_headers(204, [], end_of_stream=True),
        service.ProcessingResponse(
            streamed_immediate_response=service.StreamedImmediateResponse(
                headers_response=service.HttpHeaders(headers=envoy_headers((":status", b"204")), end_of_stream=True)
            )
        ),
    ),
    (
        messages.answer_body(b"data: x\n\n"),
        service.ProcessingResponse(
            streamed_immediate_response=service.StreamedImmediateResponse(
                body_response=service.StreamedBodyResponse(body=b"data: x\n\n")
            )
        ),
    ),
    (
        messages.answer_body(b"", end_of_stream=True, dynamic_metadata={"phase": "interrupted", "attempts": 2}),
        service.ProcessingResponse(
            streamed_immediate_response=service.StreamedImmediateResponse(
                body_response=service.StreamedBodyResponse(end_of_stream=True)
            ),
            dynamic_metadata=well_known.Struct(
                fields={
                    "deltafence": well_known.Value(
                        struct_value=well_known.Struct(
                            fields={
                                "phase": well_known.Value(string_value="interrupted"),
                                "attempts": well_known.Value(number_value=2.0),
                            }
                        )
                    )
                }
            ),
        ),
    ),
    (
        messages.immediate(503, [("content-type", "application/json")], b"{}", "no_healthy_replica"),
        service.ProcessingResponse(
            immediate_response=service.ImmediateResponse(
                status=envoy_type.HttpStatus(code=envoy_type.StatusCode.ServiceUnavailable),
                headers=service.HeaderMutation(
                    set_headers=[
                        core.HeaderValueOption(
                            header=core.HeaderValue(key="content-type", raw_value=b"application/json"),
                            append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
                        )
                    ]
                ),
                body=b"{}",
                details="no_healthy_replica",
            )
        ),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), ENCODED)
def test_envoy_reads_what_was_meant(ours: protobuf.ProcessingResponse, theirs: service.ProcessingResponse) -> None:
    assert envoy_reads(ours) == theirs


@pytest.mark.parametrize("body", [b"", b"{}"])
@pytest.mark.parametrize("end_of_stream", [True, False])
def test_en_04_body_is_only_answered_with_streamed_response(body: bytes, end_of_stream: bool) -> None:
    mutation = envoy_reads(messages.passthrough_body(body, end_of_stream)).request_body.response.body_mutation
    assert mutation == service.BodyMutation(
        streamed_response=service.StreamedBodyResponse(body=body, end_of_stream=end_of_stream)
    )


@pytest.mark.parametrize("length", [0, 1, 100, 121, 122, 123, 124, 125, 127, 128, 16_000, 16_383, 16_384, 3_000_000])
def test_the_delta_encoded_by_hand_is_the_message_byte_for_byte(length: int) -> None:
    body = b"x" * length
    assert messages.encode_delta(body) == messages.answer_body(body).SerializeToString()

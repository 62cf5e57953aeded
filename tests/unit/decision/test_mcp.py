"""MCP tool calls: the same call from two attempts is one call, whatever its JSON-RPC id."""

import json

import pytest

from extproc.decision.mcp import KEY_IN_META, find_response, read_message, readdress


def call(message_id: object, arguments: dict[str, object], meta: dict[str, object] | None = None) -> bytes:
    parameters: dict[str, object] = {"name": "send_mail", "arguments": arguments}
    if meta is not None:
        parameters["_meta"] = meta
    return json.dumps({"jsonrpc": "2.0", "id": message_id, "method": "tools/call", "params": parameters}).encode()


def test_calls_that_differ_in_id_and_meta_only_are_one_call():
    first = read_message(call(7, {"to": "a", "n": 1}, {"progressToken": 1}))
    again = read_message(call("x-1", {"n": 1, "to": "a"}))
    assert first is not None
    assert again is not None
    assert first.identity == again.identity
    assert (first.id, again.id) == (7, "x-1")


def test_calls_with_other_arguments_are_other_calls():
    assert read_message(call(1, {"to": "a"})).identity != read_message(call(1, {"to": "b"})).identity  # type: ignore[union-attr]


def test_a_call_may_carry_its_key():
    assert read_message(call(1, {}, {KEY_IN_META: "req:call_07"})).key == "req:call_07"  # type: ignore[union-attr]
    assert read_message(call(1, {}, {KEY_IN_META: 7})).key is None  # type: ignore[union-attr]
    assert read_message(call(1, {})).key is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "document",
    [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "x"}},
    ],
)
def test_everything_else_of_the_protocol_is_no_action(document: dict[str, object]):
    message = read_message(json.dumps(document).encode())
    assert message is not None
    assert not message.is_tool_call


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"method": "tools/call"}', b'[{"jsonrpc": "2.0"}]', b"\xff", b"[" * 100_000]
)
def test_what_is_no_message_is_left_alone(body: bytes):
    assert read_message(body) is None


def test_the_response_is_found_among_progress_and_other_messages():
    payloads = [
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}',
        b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage"}',
        b'{"jsonrpc":"2.0","id":8,"result":{"other":true}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"ok":true}}',
    ]
    response = find_response(payloads, 7)
    assert response is not None
    assert json.loads(response)["result"] == {"ok": True}
    assert find_response(payloads[:3], 7) is None


def test_a_stored_response_is_given_the_new_callers_id():
    assert json.loads(readdress(b'{"jsonrpc":"2.0","id":7,"result":{"ok":true}}', "x-1")) == {
        "jsonrpc": "2.0",
        "id": "x-1",
        "result": {"ok": True},
    }
    assert readdress(b"not json", 1) == b"not json"

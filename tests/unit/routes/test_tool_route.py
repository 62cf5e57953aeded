"""The description of a tool's route: read strictly, written so that Envoy hands it on unchanged."""

import json

import pytest

from extproc.decision.tool_call import ToolRoute
from extproc.routes.problems import PolicyError
from extproc.routes.tool_route import encode_tool_route, read_tool_route

WHOLE = ToolRoute(
    name="mail",
    require_key=True,
    caller_header="x-tenant",
    wait_ms=1,
    deadline_ms=2,
    answer_bytes_max=3,
    keep_ms=4,
    status_path="/status?key={key}&x=%20",
)


@pytest.mark.parametrize("route", [ToolRoute(name="mail"), WHOLE])
def test_what_is_written_is_read_back(route: ToolRoute):
    text = encode_tool_route(route)
    assert text.isascii()
    assert "%" not in text
    assert read_tool_route(text) == route


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ("{", ""),
        ("[]", ""),
        ({}, "name"),
        ({"name": "Mail Tool"}, "name"),
        ({"name": 1}, "name"),
        ({"name": "m", "wait_ms": "5s"}, "wait_ms"),
        ({"name": "m", "wait_ms": True}, "wait_ms"),
        ({"name": "m", "wait_ms": -1}, "wait_ms"),
        ({"name": "m", "wait_ms": 2, "deadline_ms": 1}, "wait_ms"),
        ({"name": "m", "answer_bytes_max": 0}, "answer_bytes_max"),
        ({"name": "m", "require_key": "yes"}, "require_key"),
        ({"name": "m", "status_path": "/status"}, "status_path"),
        ({"name": "m", "status_path": "status/{key}"}, "status_path"),
        ({"name": "m", "caller_header": "Authorization"}, "caller_header"),
        ({"name": "m", "retries": 3}, "retries"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(document: object, path: str):
    with pytest.raises(PolicyError) as refusal:
        read_tool_route(document if isinstance(document, str) else json.dumps(document))
    assert [problem.path for problem in refusal.value.problems] == [path]

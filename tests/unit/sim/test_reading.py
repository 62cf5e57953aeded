import json

import pytest

from extproc.sim.reading import Api, GenerationRequest, RequestError, read_request, tokenize


def read(api: Api, **document: object) -> GenerationRequest:
    return read_request(api, json.dumps(document).encode(), default_model="m")


@pytest.mark.parametrize(
    ("api", "document", "prompt"),
    [
        (Api.CHAT, {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": None}]}, "a b"),
        (Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "a"),
        (Api.COMPLETIONS, {"prompt": "a b"}, "a b"),
        (Api.COMPLETIONS, {"prompt": [1, 2]}, "1 2"),
        (Api.RESPONSES, {"input": "a", "instructions": "be"}, "be a"),
        (Api.MESSAGES, {"system": [{"type": "text", "text": "be"}], "messages": [{"role": "user", "content": "a"}]}, "be a"),
    ],
)
def test_prompt_is_read_in_every_shape(api: Api, document: dict[str, object], prompt: str) -> None:
    assert read(api, **document).prompt.split() == prompt.split()


def test_every_prompt_of_a_batch_has_its_choices() -> None:
    assert read(Api.COMPLETIONS, prompt=["a", "b"], n=2).choices == 4
    assert read(Api.COMPLETIONS, prompt=[1, 2]).choices == 1
    assert read(Api.RESPONSES, input="a", n=3).choices == 1


@pytest.mark.parametrize(
    ("document", "tool", "named"),
    [
        ({}, None, False),
        ({"tools": []}, None, False),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "f", False),
        ({"tools": [{"name": "f"}], "tool_choice": {"type": "auto"}}, "f", False),
        ({"tools": [{"name": "f"}], "tool_choice": "none"}, None, False),
        ({"tools": [{"name": "f"}], "tool_choice": {"type": "none"}}, None, False),
        ({"tools": [{"name": "f"}, {"name": "g"}], "tool_choice": {"type": "tool", "name": "g"}}, "g", True),
    ],
)
def test_tool_is_called_unless_it_is_ruled_out(document: dict[str, object], tool: str | None, named: bool) -> None:
    request = read(Api.CHAT, messages=[], **document)
    assert (request.tool, request.tool_is_named) == (tool, named)


@pytest.mark.parametrize(
    ("api", "document", "max_tokens"),
    [
        (Api.CHAT, {"messages": []}, None),
        (Api.CHAT, {"messages": [], "max_tokens": 3, "max_completion_tokens": 2}, 2),
        (Api.COMPLETIONS, {"prompt": ""}, 16),
        (Api.RESPONSES, {"input": "", "max_output_tokens": 4}, 4),
    ],
)
def test_max_tokens_goes_by_the_api_s_name_for_it(api: Api, document: dict[str, object], max_tokens: int | None) -> None:
    assert read(api, **document).max_tokens == max_tokens


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b'{"messages": 1}', b'{"messages": [], "max_tokens": 0}', b'{"messages": [], "max_tokens": "x"}']
)
def test_unreadable_body_is_a_400(body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        read_request(Api.CHAT, body, default_model="m")
    assert refused.value.status == 400


def test_empty_prompt_is_one_token() -> None:
    assert tokenize("") == [0]
    assert tokenize("one three") == [3, 5]

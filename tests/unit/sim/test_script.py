import json

import pytest

from extproc.sim.reading import Api, GenerationRequest, read_request
from extproc.sim.script import FinishReason, Step, ToolStart, script


def request_of(**document: object) -> GenerationRequest:
    return read_request(Api.CHAT, json.dumps({"messages": [{"content": "a b"}]} | document).encode(), default_model="m")


def steps_of(*, tokens: int = 3, max_model_len: int = 100, **document: object) -> list[Step]:
    return list(script(request_of(**document), name="r1", tokens=tokens, max_model_len=max_model_len))


def text_of(steps: list[Step], choice: int = 0) -> str:
    return "".join(step.pieces[choice].text for step in steps)


@pytest.mark.parametrize(
    ("options", "text", "finish"),
    [
        ({}, "r1:0 r1:1 r1:2 ", FinishReason.STOP),
        ({"max_tokens": 2}, "r1:0 r1:1 ", FinishReason.LENGTH),
        ({"max_tokens": 3}, "r1:0 r1:1 r1:2 ", FinishReason.LENGTH),
        ({"max_tokens": 4}, "r1:0 r1:1 r1:2 ", FinishReason.STOP),
        ({"max_tokens": 5, "ignore_eos": True}, "r1:0 r1:1 r1:2 r1:3 r1:4 ", FinishReason.LENGTH),
        ({"max_model_len": 4}, "r1:0 r1:1 ", FinishReason.LENGTH),
        ({"tokens": 0}, "", FinishReason.STOP),
    ],
)
def test_answer_ends_where_it_should(options: dict[str, object], text: str, finish: FinishReason) -> None:
    steps = steps_of(**options)
    assert text_of(steps) == text
    assert [step.finish for step in steps] == [None] * (len(steps) - 1) + [finish]


def test_each_choice_has_its_own_voice() -> None:
    steps = steps_of(n=2, tokens=1)
    assert [text_of(steps, choice) for choice in (0, 1)] == ["r1:0 ", "r1/1:0 "]


def test_tool_arguments_are_json_that_names_the_replica() -> None:
    steps = steps_of(tools=[{"name": "f"}], tokens=4)
    assert isinstance(steps[0].pieces[0], ToolStart)
    assert json.loads(text_of(steps)) == {"answer": "r1:1 r1:2 r1:3 "}

"""The official SDKs, pointed straight at a replica."""

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess

TEXT = "r1:0 r1:1 r1:2 r1:3 r1:4 "
MESSAGES = [{"role": "user", "content": "two words"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ARGUMENTS = '{"answer": "r1:1 r1:2 r1:3 r1:4 "}'


@pytest.fixture
async def client(replica: ReplicaProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(replica: ReplicaProcess) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=replica.url, api_key="none", max_retries=0) as client:
        yield client


async def test_chat_stream(client: openai.AsyncOpenAI) -> None:
    options = {"include_usage": True}
    stream = await client.chat.completions.create(model="sim-model", messages=MESSAGES, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (2, 6)


async def test_chat_stream_with_usage_on_every_chunk(client: openai.AsyncOpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await client.chat.completions.create(model="sim-model", messages=MESSAGES, stream=True, stream_options=options)
    assert [chunk.usage.completion_tokens async for chunk in stream] == [0, 1, 2, 3, 4, 5, 6, 6]


async def test_chat_stream_of_two_choices(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="sim-model", messages=MESSAGES, stream=True, n=2, max_tokens=2)
    chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.role for chunk in chunks[:3]] == ["assistant", "assistant", None]
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content
    assert texts == ["r1:0 r1:1 ", "r1/1:0 r1/1:1 "]
    # A length finish travels with the last text (FC-05).
    assert [(chunk.choices[0].delta.content, chunk.choices[0].finish_reason) for chunk in chunks[-2:]] == [
        ("r1:1 ", "length"),
        ("r1/1:1 ", "length"),
    ]


async def test_chat_stream_of_a_tool_call(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="sim-model", messages=MESSAGES, stream=True, tools=[TOOL])
    deltas = [chunk.choices[0] async for chunk in stream]
    calls = [delta.delta.tool_calls[0] for delta in deltas if delta.delta.tool_calls]
    assert (calls[0].function.name, calls[0].index) == ("look", 0)
    assert calls[0].id
    assert "".join(call.function.arguments for call in calls) == ARGUMENTS
    assert deltas[-1].finish_reason == "tool_calls"


async def test_chat_not_streamed(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="sim-model", messages=MESSAGES, n=2)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT.replace("r1", "r1/1")]
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("stop", 12)
    called = await client.chat.completions.create(model="sim-model", messages=MESSAGES, tools=[TOOL])
    assert called.choices[0].message.tool_calls[0].function.arguments == ARGUMENTS
    assert called.choices[0].finish_reason == "tool_calls"


async def test_completions(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="sim-model", prompt="one", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == TEXT
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 4, 5, 6, 6]
    answer = await client.completions.create(model="sim-model", prompt=["one", "two"], max_tokens=1)
    assert [(choice.text, choice.finish_reason) for choice in answer.choices] == [("r1:0 ", "length"), ("r1/1:0 ", "length")]


async def test_responses_stream(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model="sim-model", input="two words") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.text for event in events if event.type == "response.output_text.done"] == [TEXT]
    assert (final.output_text, final.status, final.usage.output_tokens) == (TEXT, "completed", 6)


async def test_responses_stream_of_a_tool_call(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(
        model="sim-model", input="x", stream=True, tools=[{"type": "function", "name": "look", "parameters": {}, "strict": None}]
    )
    events = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == ARGUMENTS
    assert [(item.name, item.arguments) for item in events[-1].response.output] == [("look", ARGUMENTS)]


async def test_responses_not_streamed_and_cut_by_length(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="sim-model", input="x", max_output_tokens=2)
    assert (answer.output_text, answer.status, answer.incomplete_details.reason) == (
        "r1:0 r1:1 ",
        "incomplete",
        "max_output_tokens",
    )


async def test_messages_stream(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(model="sim-model", messages=MESSAGES, max_tokens=99) as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert (types[0], types[-1]) == ("message_start", "message_stop")
    assert (final.content[0].text, final.stop_reason) == (TEXT, "end_turn")
    assert (final.usage.input_tokens, final.usage.output_tokens) == (2, 6)


async def test_messages_stream_of_a_tool_call(claude: anthropic.AsyncAnthropic) -> None:
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    async with claude.messages.stream(model="sim-model", messages=MESSAGES, max_tokens=99, tools=tools) as stream:
        final = await stream.get_final_message()
    assert (final.content[0].name, final.content[0].input) == ("look", {"answer": "r1:1 r1:2 r1:3 r1:4 "})
    assert final.stop_reason == "tool_use"


async def test_messages_not_streamed(claude: anthropic.AsyncAnthropic) -> None:
    answer = await claude.messages.create(model="sim-model", messages=MESSAGES, max_tokens=2)
    assert (answer.content[0].text, answer.stop_reason, answer.role) == ("r1:0 r1:1 ", "max_tokens", "assistant")
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    called = await claude.messages.create(model="sim-model", messages=MESSAGES, max_tokens=2, tools=tools)
    assert (called.content[0].name, called.content[0].input) == ("look", {})


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [(model.id, model.owned_by) async for model in client.models.list()] == [("sim-model", "vllm")]


async def test_unknown_model_is_a_404(client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        await claude.messages.create(model="other", messages=MESSAGES, max_tokens=1)


async def test_engine_error_after_the_first_delta_raises_in_every_sdk(
    replica: ReplicaProcess, client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    await replica.set_faults(Fault(where=Where.AFTER_FIRST_DELTA, what=What.ERROR_EVENT, message="boom"))
    with pytest.raises(openai.APIError, match="boom"):
        async for _ in await client.chat.completions.create(model="sim-model", messages=MESSAGES, stream=True):
            pass
    with pytest.raises(openai.APIError, match="boom"):
        async for _ in await client.completions.create(model="sim-model", prompt="x", stream=True):
            pass
    with pytest.raises(openai.APIError, match="boom"):
        async for _ in await client.responses.create(model="sim-model", input="x", stream=True):
            pass
    with pytest.raises(anthropic.APIStatusError, match="validation errors"):
        async for _ in await claude.messages.create(model="sim-model", messages=MESSAGES, max_tokens=9, stream=True):
            pass

"""The official SDKs as their users call them, with their defaults: one question, and what the SDK made of the answer."""

import asyncio
import json
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from extproc.app.demonstration.apis import QUESTION
from extproc.sse.dialects import Dialect

MODEL = "sim-model"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
NODE_DIRECTORY = Path(__file__).parent / "node"


@dataclass(frozen=True, kw_only=True)
class Raised:
    """The SDK's API error. ``facts``: the error object that it read out of the answer."""

    facts: dict[str, Any]
    code: str | None
    message: str
    status: int | None


@dataclass(frozen=True, kw_only=True)
class Heard:
    """The text that the SDK gave, and the error that it raised then, if any."""

    text: str
    error: Raised | None = None


class Sdk(ABC):
    """One SDK speaking one API."""

    def __init__(self, api: Dialect) -> None:
        self.api = api

    @abstractmethod
    async def ask(self, url: str, *, stream: bool, leave: bool = False) -> Heard:
        """Ask once. ``leave``: close the stream at its first text."""


class PythonSdk(Sdk):
    async def ask(self, url: str, *, stream: bool, leave: bool = False) -> Heard:
        text = ""
        try:
            if not stream:
                return Heard(text=await self.whole(url))
            async for delta in self.deltas(url, leave=leave):
                text += delta
        except (openai.APIError, anthropic.APIError) as error:
            return Heard(text=text, error=raised(error))
        return Heard(text=text)

    @abstractmethod
    async def whole(self, url: str) -> str:
        """The text of an answer that is not streamed."""

    @abstractmethod
    def deltas(self, url: str, *, leave: bool) -> AsyncIterator[str]:
        """The texts of a streamed one."""


def raised(error: openai.APIError | anthropic.APIError) -> Raised:
    body: Any = error.body
    facts = body["error"] if isinstance(error, anthropic.APIError) else body
    code = getattr(error, "error_code", None) or getattr(error, "code", None)
    return Raised(facts=facts, code=code, message=error.message, status=getattr(error, "status_code", None))


class OpenAIPython(PythonSdk):
    async def whole(self, url: str) -> str:
        async with self.client(url) as client:
            match self.api:
                case Dialect.CHAT:
                    chat = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
                    return chat.choices[0].message.content or ""
                case Dialect.COMPLETIONS:
                    completion = await client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=100)
                    return completion.choices[0].text
                case _:
                    return (await client.responses.create(model=MODEL, input=QUESTION)).output_text

    async def deltas(self, url: str, *, leave: bool) -> AsyncIterator[str]:
        async with self.client(url) as client, await self.stream(client) as events:
            async for event in events:
                if delta := self.delta(event):
                    yield delta
                    if leave:
                        return

    def client(self, url: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused")

    async def stream(self, client: openai.AsyncOpenAI) -> Any:
        match self.api:
            case Dialect.CHAT:
                return await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            case Dialect.COMPLETIONS:
                return await client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=100, stream=True)
            case _:
                return await client.responses.create(model=MODEL, input=QUESTION, stream=True)

    def delta(self, event: Any) -> str:
        match self.api:
            case Dialect.CHAT:
                return event.choices[0].delta.content or ""
            case Dialect.COMPLETIONS:
                return event.choices[0].text
            case _:
                return event.delta if event.type == "response.output_text.delta" else ""


class AnthropicPython(PythonSdk):
    async def whole(self, url: str) -> str:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="unused") as client:
            answer: Any = await client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=100)
            return answer.content[0].text

    async def deltas(self, url: str, *, leave: bool) -> AsyncIterator[str]:
        async with (
            anthropic.AsyncAnthropic(base_url=url, api_key="unused") as client,
            client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=100) as stream,
        ):
            async for text in stream.text_stream:
                yield text
                if leave:
                    return


class OpenAINode(Sdk):
    async def ask(self, url: str, *, stream: bool, leave: bool = False) -> Heard:
        if shutil.which("node") is None or not (NODE_DIRECTORY / "node_modules" / "openai").is_dir():
            pytest.skip("Node or its SDK is not here; `make test-sdk` installs the SDK where npm is")
        question = {"url": url, "api": self.api, "stream": stream, "leave": leave}
        process = await asyncio.create_subprocess_exec(
            *("node", "ask.mjs", json.dumps(question)), cwd=NODE_DIRECTORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        output, complaints = await process.communicate()
        assert process.returncode == 0, complaints.decode()
        heard = json.loads(output)
        return Heard(text=heard["text"], error=heard["error"] and Raised(**heard["error"]))


SDKS: dict[str, Sdk] = {
    **{f"openai-python-{api}": OpenAIPython(api) for api in (Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES)},
    "anthropic-python": AnthropicPython(Dialect.MESSAGES),
    **{f"openai-node-{api}": OpenAINode(api) for api in (Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES)},
}

"""The bytes that each API puts around an answer, in vLLM 0.32's shapes and order (FACTS A).

One writer per API and request; ``writer_for`` chooses it. A writer holds what its stream has said so far, and no connection.
"""

from typing import Final

from extproc.sim.dialects.chat import ChatWriter
from extproc.sim.dialects.completions import CompletionsWriter
from extproc.sim.dialects.messages import MessagesWriter
from extproc.sim.dialects.responses import ResponsesWriter
from extproc.sim.dialects.writer import Answer, Writer
from extproc.sim.reading import Api

_WRITERS: Final[dict[Api, type[Writer]]] = {
    Api.CHAT: ChatWriter,
    Api.COMPLETIONS: CompletionsWriter,
    Api.RESPONSES: ResponsesWriter,
    Api.MESSAGES: MessagesWriter,
}


def writer_for(answer: Answer) -> Writer:
    return _WRITERS[answer.request.api](answer)

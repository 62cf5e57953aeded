"""One request from its headers to its last byte, past every place where a fault can strike."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

from extproc.sim.dialects.writer import Answer, Event, EventKind, Writer, encode_json, error_body
from extproc.sim.engine import Engine, EngineAborted, EngineError, Sequence
from extproc.sim.faults import Where
from extproc.sim.publishing import EVENT_STREAM, JSON, Publisher
from extproc.sim.request_log import Ended, Record
from extproc.sim.script import FinishReason, Step, script
from extproc.sim.settings import Settings
from extproc.sim.strikes import Strikes, Struck


@dataclass(slots=True, kw_only=True)
class Generation:
    settings: Settings
    engine: Engine
    answer: Answer
    writer: Writer
    publisher: Publisher
    record: Record
    strikes: Strikes
    call_tool: Callable[[Record], Awaitable[None]]
    _deltas: int = 0
    _is_past_role: bool = False
    _is_finished: bool = False

    async def run(self) -> None:
        """Answer the request. Every way out but a cancel leaves the response ended."""
        try:
            if self.answer.request.stream:
                await self._stream()
            else:
                await self._whole()
        except Struck:
            pass
        except EngineError as failure:
            await self._fail(str(failure))
        except EngineAborted:
            await self._abort()
        else:
            self.record.end(Ended.FINISHED)

    async def _stream(self) -> None:
        await self.strikes.at(Where.BEFORE_HEADERS)
        self.engine.check()
        await self.publisher.start(200, EVENT_STREAM)
        await self.publisher.publish(*self.writer.opened())
        async with self._slot() as sequence, aclosing(self._steps(sequence)) as steps:
            await self.strikes.at(Where.AFTER_HEADERS)
            async for step in steps:
                if not self._is_past_role:
                    await self.publisher.publish(*self.writer.started())
                for choice, piece in enumerate(step.pieces):
                    for event in self.writer.piece(choice, piece, step.finish):
                        await self._publish_past_faults(event)
        await self.publisher.publish(*self.writer.usage())
        await self.strikes.at(Where.AFTER_FINISH)
        await self.publisher.publish(*self.writer.done())
        await self.strikes.at(Where.AFTER_DONE)
        await self.publisher.end()

    async def _publish_past_faults(self, event: Event) -> None:
        if event.kind is not EventKind.ROLE and not self._is_past_role:
            self._is_past_role = True
            await self.strikes.at(Where.AFTER_ROLE)
        if event.kind is EventKind.FINISH and not self._is_finished:
            self._is_finished = True
            await self.strikes.at(Where.BEFORE_FINISH)
        is_delta = event.kind is EventKind.DELTA or event.text != ""
        if is_delta and self.strikes.has(Where.INSIDE_EVENT, self._deltas):
            half = len(event.data) // 2
            await self.publisher.publish(Event(EventKind.FRAGMENT, event.data[:half]))
            await self.strikes.at(Where.INSIDE_EVENT, self._deltas)
            event = replace(event, data=event.data[half:])
        await self.publisher.publish(event)
        if is_delta:
            self._deltas += 1
            if self._deltas == 1:
                await self.strikes.at(Where.AFTER_FIRST_DELTA)
            await self.strikes.at(Where.MID_DECODE, self._deltas)

    async def _whole(self) -> None:
        await self.strikes.at(Where.BEFORE_HEADERS)
        finish = FinishReason.STOP
        async with self._slot() as sequence, aclosing(self._steps(sequence)) as steps:
            async for step in steps:
                self._deltas += 1
                await self.strikes.at(Where.MID_DECODE, self._deltas)
                finish = step.finish or finish
        await self._publish_whole(finish)

    async def _publish_whole(self, finish: FinishReason) -> None:
        data = encode_json(self.writer.body(finish))
        length = () if self.strikes.is_body_cut else ((b"content-length", str(len(data)).encode()),)
        await self.publisher.start(200, JSON, length)
        await self.strikes.at(Where.AFTER_HEADERS)
        half = len(data) // 2 if self.strikes.has(Where.MID_BODY) else 0
        if half > 0:
            await self.publisher.publish(Event(EventKind.FRAGMENT, data[:half]))
            await self.strikes.at(Where.MID_BODY)
        await self.publisher.publish(Event(EventKind.BODY, data[half:], self.answer.text()))
        await self.publisher.end()

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[Sequence]:
        async with self.engine.admit(self.answer.request.prompt_tokens) as sequence:
            self.record.slot_taken_at = time.monotonic()
            sequence.slowness = self.strikes.slowness
            self.strikes.sequence = sequence
            try:
                yield sequence
            finally:
                self.record.slot_freed_at = time.monotonic()

    async def _steps(self, sequence: Sequence) -> AsyncGenerator[Step]:
        """Prefill, tool, then one step after another, each already computed and part of the answer."""
        request = self.answer.request
        await sequence.prefill(0.5)
        await self.strikes.at(Where.IN_PREFILL)
        await sequence.prefill(0.5)
        if request.calls_tool_url and self.settings.tool_url:
            await self.call_tool(self.record)
            await self.strikes.at(Where.AFTER_TOOL)
        settings = self.settings
        steps = script(request, name=settings.name, tokens=settings.tokens, max_model_len=settings.max_model_len)
        for number, step in enumerate(steps):
            await sequence.step(tokens=len(step.pieces), first=number == 0)
            self.record.computed(len(step.pieces))
            for choice, piece in enumerate(step.pieces):
                self.answer.pieces[choice].append(piece)
            await self.strikes.at(Where.AFTER_TOKEN_COMPUTED, number)
            sequence.finish = step.finish or sequence.finish
            yield step

    async def _fail(self, message: str) -> None:
        request = self.answer.request
        if not self.publisher.is_started and (self.engine.dead or not request.stream):
            await self.publisher.error(500, error_body(request.api, 500, message))
            self.record.end(Ended.REFUSED)
            return
        if not self.publisher.is_started:
            await self.publisher.start(200, EVENT_STREAM)
        if request.stream:
            await self.publisher.publish(*self.writer.error(message))
        await self.publisher.end()
        self.record.end(Ended.FAILED)

    async def _abort(self) -> None:
        if not self.answer.request.stream:
            await self._publish_whole(FinishReason.ABORT)
        else:
            if not self.publisher.is_started:
                await self.publisher.start(200, EVENT_STREAM)
            await self.publisher.publish(*self.writer.finish_now(FinishReason.ABORT), *self.writer.usage(), *self.writer.done())
            await self.publisher.end()
        self.record.end(Ended.ABORTED)

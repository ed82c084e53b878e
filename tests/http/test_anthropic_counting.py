"""Prompts are counted one at a time, and what cannot be counted is refused, not failed."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from samovar.actors.requests import GenerationRequest, Refused
from samovar.runtime.counting import MAX_WAITING, PromptCounter
from samovar.runtime.engine.errors import EngineError, TemplateError
from samovar.runtime.kernel import ActorGone, BlockingPool

from tests.kit.models import ByteCodec
from tests.kit.prompts import chat

from .fakes import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samovar.runtime.engine.prompt import Constraint, Prompt, RenderedPrompt

ASKED = GenerationRequest("count_1", chat("Hi"))


class SlowCodec(ByteCodec):
    """Renders once it may, or fails; knows how many do so at once."""

    def __init__(self, error: EngineError | None = None) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.error = error
        self.busy = self.most = 0

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            assert self.may_go.wait(10.0)
            if self.error is not None:
                raise self.error
            return super().render(prompt, constraint)
        finally:
            self.busy -= 1


@contextmanager
def counting(codec: SlowCodec) -> Iterator[tuple[PromptCounter, BlockingPool]]:
    pool = BlockingPool("count", 4, 4)
    try:
        yield PromptCounter(lambda: codec, pool), pool
    finally:
        codec.may_go.set()
        pool.close()


def test_a_prompt_that_cannot_be_made_is_refused_with_its_field() -> None:
    async def scenario() -> None:
        codec = SlowCodec(TemplateError("roles must alternate"))
        codec.may_go.set()
        with counting(codec) as (counter, _):
            refused = await counter.count(ASKED)
            assert isinstance(refused, Refused)
            assert (refused.code, refused.param) == ("template_error", "messages")
            codec.error = None
            assert await counter.count(ASKED) == len("user: Hi\n")

    run(scenario())


def test_one_at_a_time_and_only_so_many_wait() -> None:
    async def scenario() -> None:
        codec = SlowCodec()
        with counting(codec) as (counter, _):
            waiting = [asyncio.ensure_future(counter.count(ASKED)) for _ in range(MAX_WAITING)]
            await asyncio.sleep(0)
            refused = await counter.count(ASKED)
            assert isinstance(refused, Refused)
            assert refused.code == "queue_full"
            assert refused.retry_after_s
            for task in waiting[1:]:  # clients that leave make room
                task.cancel()
            await asyncio.wait(waiting[1:])
            late = asyncio.ensure_future(counter.count(ASKED))
            codec.may_go.set()
            assert await waiting[0] == await late == len("user: Hi\n")
            assert codec.most == 1

    run(scenario())


def test_a_pool_that_is_closed_is_the_servers_end() -> None:
    async def scenario() -> None:
        with counting(SlowCodec()) as (counter, pool):
            pool.close()
            with pytest.raises(ActorGone):
                await counter.count(ASKED)

    run(scenario())

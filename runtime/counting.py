"""Counting the tokens of prompts that nobody generates from."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ..actors.requests import Refused
from .engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..actors.requests import GenerationRequest
    from .engine.port import TextCodec
    from .kernel import BlockingPool

AT_ONCE: Final = 1
MAX_WAITING: Final = 64
_RETRY_AFTER_S: Final = 1.0


class PromptCounter:
    """Renders prompts on the threads that also render those of requests. Loop thread only.

    Only one at a time, so that counting never keeps a request from its thread for longer than one prompt
    takes; at most ``MAX_WAITING`` more wait, the rest is refused.
    """

    def __init__(self, codec: Callable[[], TextCodec], pool: BlockingPool) -> None:
        self._codec = codec
        self._pool = pool
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def count(self, request: GenerationRequest) -> int | Refused:
        """Return how many tokens the prompt has; Refused where it cannot be made or too many wait.

        Raises a retryable EngineError, and AskError where the pool is full or closed.
        """
        if self._waiting >= MAX_WAITING:
            message = f"{self._waiting} prompts are waiting to be counted already"
            return Refused("queue_full", message, retry_after_s=_RETRY_AFTER_S)
        self._waiting += 1
        try:
            async with self._turn:
                prompt = await self._pool.run(self._codec().render, request.prompt)
        except EngineError as error:
            if error.retryable:
                raise
            return Refused(error.code, str(error), request.prompt_field)
        finally:
            self._waiting -= 1
        return len(prompt.tokens)

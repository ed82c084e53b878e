"""Replies of a model in this process: the server's own actor tree without its HTTP part."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from ....actors.requests import GenerationRequest, Refused
from ....storage.fs import FileLocked
from ...app import build_tree
from ...engine.errors import EngineError
from ...engine.port import Cancelled, Failed, Sampling
from ...engine.prompt import Conversation
from ...http.call import Call
from ...http.replies.pieces import Reasoning, Text
from ...http.replies.reader import ReplyReader
from ...kernel import ActorSystem, AskError, StartFailed
from ...observer import LogObserver
from ...requestlog import LineLog
from ...serve import start_error
from .chunks import rate
from .speech import Done, GaveUp, ReplyFailed, Said, Thought

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from ....actors.requests import Admitted, PrefixReuse
    from ....actors.stream import RequestStream
    from ....storage.filesystem import Filesystem
    from ...app import Engine, Tree
    from ...config import Config
    from ...http.replies.pieces import ChoiceEnd, Piece
    from .speech import Message, Wish
    from .speech import Piece as Spoken

SETTLE_S: Final = 30.0
GAVE_UP: Final = "gave_up"


class TreeSpeaker:
    """Runs the tree of ``config`` over ``engine``. ``remark`` gets a line for people.

    Prompts are cached as a server caches them, on disk too, unless another process holds the folder: that
    is told, and the disk tier stays off.
    """

    def __init__(self, config: Config, engine: Engine, fs: Filesystem, remark: Callable[[str], None]) -> None:
        self._config = config
        self._engine = engine
        self._fs = fs
        self._remark = remark
        self._session = f"chat-{token_hex(8)}"
        self._tree: Tree | None = None
        self._stream: RequestStream | None = None
        self._system: ActorSystem | None = None
        self._asides: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start the tree. Raises StartError."""
        try:
            await self._start(self._config)
        except StartFailed as error:
            if not isinstance(error.__cause__, FileLocked):
                raise start_error(error) from error
            self._remark(f"the disk cache is in use ({error.__cause__}): going on without it")
            server = self._config.server
            self._remark(
                "to share a running server's cache: "
                f"samovar chat --url http://{server.host}:{server.port}, or wherever it listens"
            )
            await self._start_again()

    async def introduce(self) -> str:
        """Name the model."""
        assert self._tree is not None
        return self._tree.serving.model().id

    async def reply(self, messages: Sequence[Message], wish: Wish) -> AsyncGenerator[Spoken]:
        """Submit one request and yield what its stream says."""
        assert self._tree is not None
        serving = self._tree.serving
        request = self._request(messages, wish)
        try:
            admission = await serving.submit(request)
        except AskError as error:
            raise self._lost(error) from error
        if isinstance(admission, Refused):
            retryable = admission.retry_after_s is not None
            raise ReplyFailed(admission.message, admission.code, retryable=retryable)
        call = Call(request.id, (request,), serving.model().id, stream=True)
        reader = ReplyReader(0, call, serving.model().reply, in_reasoning=admission.in_reasoning)
        self._stream = admission.stream
        try:
            async for piece in _read(admission, reader):
                yield piece
        finally:
            self._stream = None
            admission.stream.cancel()

    async def close(self) -> None:
        """Flush the cache, for SETTLE_S at most, and stop the tree."""
        tree, self._tree = self._tree, None
        if tree is not None and tree.cache is not None:
            with suppress(AskError):
                await tree.cache.settle(SETTLE_S)
        await self._stop(tree)

    async def _start_again(self) -> None:
        ssd = replace(self._config.cache.ssd, dir="off")
        config = replace(self._config, cache=replace(self._config.cache, ssd=ssd))
        try:
            await self._start(config)
        except StartFailed as error:
            raise start_error(error) from error

    async def _start(self, config: Config) -> None:
        try:
            tree = build_tree(config, self._engine, LineLog(), self._fs)
        except EngineError as error:
            raise start_error(error) from error
        root = replace(tree.root, children=[child for child in tree.root.children if child is not tree.http])
        tree.serving.system = self._system = ActorSystem(root, observer=LogObserver())
        try:
            await self._system.start()
        except BaseException:
            await self._stop(tree)
            raise
        self._tree = tree
        tree.serving.started()
        self._asides = {
            asyncio.ensure_future(tree.recall_history()),  # the ids of earlier conversations
            asyncio.ensure_future(self._watch(self._system)),
        }

    async def _watch(self, system: ActorSystem) -> None:
        """End the reply under way when the root gives up: nobody else would."""
        failure = await system.wait()
        if self._stream is not None:
            self._stream.push(Failed(self._stream.id, GAVE_UP, str(failure)))

    def _lost(self, error: AskError) -> ReplyFailed:
        if self._system is not None and self._system.running:
            return ReplyFailed(f"the model does not answer: {error}", error.code, retryable=True)
        return GaveUp(f"the model does not answer any more: {error}", GAVE_UP)

    async def _stop(self, tree: Tree | None) -> None:
        for task in self._asides:
            task.cancel()
        if self._asides:
            await asyncio.wait(self._asides)
        system, self._system = self._system, None
        if system is not None:
            await system.stop()
        if tree is not None:
            tree.close()

    def _request(self, messages: Sequence[Message], wish: Wish) -> GenerationRequest:
        assert self._tree is not None
        given = wish.temperature
        temperature = self._tree.serving.model().default_temperature if given is None else given
        return GenerationRequest(
            id=f"chat-{token_hex(12)}",
            prompt=Conversation(tuple(messages)),
            sampling=Sampling(temperature=temperature, seed=wish.seed),
            temperature_given=given is not None,
            max_tokens=wish.max_tokens,
            session_id=self._session,
        )


async def _read(admission: Admitted, reader: ReplyReader) -> AsyncGenerator[Spoken]:
    """Yield pieces until the end. Raises ReplyFailed."""
    while True:
        events = await admission.stream.take()
        ending = events[-1]
        if isinstance(ending, Cancelled):
            raise ReplyFailed("the reply was dropped", "cancelled", retryable=True)
        if isinstance(ending, Failed):
            if ending.code == GAVE_UP:
                raise GaveUp(f"the model kept crashing: {ending.message}", GAVE_UP)
            raise ReplyFailed(f"the reply failed: {ending.message}", ending.code)
        progress = reader.read(events)
        for piece in progress.pieces:
            if (spoken := _spoken(piece)) is not None:
                yield spoken
        if progress.end is not None:
            yield _done(progress.end, admission.stream, admission.reuse)
            return


def _spoken(piece: Piece) -> Spoken | None:
    match piece:
        case Text(text):
            return Said(text)
        case Reasoning(text):
            return Thought(text)
        case _:  # no tools are offered
            return None


def _done(end: ChoiceEnd, stream: RequestStream, reuse: PrefixReuse) -> Done:
    finished, first_s, ended_s = end.finished, stream.first_token_s, stream.ended_s
    decode_s = 0.0 if first_s is None or ended_s is None else ended_s - first_s
    return Done(
        cut=end.reason == "length",
        tokens=finished.completion_tokens,
        prompt_tokens=finished.prompt_tokens,
        cached_tokens=reuse.cached_tokens,
        tier=reuse.tier,
        tokens_per_s=rate(finished.completion_tokens, decode_s),
    )

"""One client: a conversation that grows turn by turn, and every promise that a reply makes to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from samovar.actors.requests import Admitted, GenerationRequest, Refused
from samovar.runtime.engine.port import Cancelled, Delta, Failed, Finished
from samovar.runtime.engine.prompt import Conversation
from samovar.runtime.kernel import ActorCrashed, ActorGone, AskError, AskTimeout
from samovar.storage.tokens import TokenIds

from .engine import reply_to
from .plan import POISON

if TYPE_CHECKING:
    from samovar.actors.stream import RequestStream, StreamEvent

    from .plan import Client, Turn
    from .process import Process
    from .world import World

TRIES = 12
AGAIN_S = 0.7
IN_FLIGHT = 4
"""Tokens that may be decoded while a cancellation is on its way."""
Outcome: TypeAlias = Literal["finished", "left", "lost", "failed", "refused", "error"]


class Call:
    """One request of a client and what came of it."""

    def __init__(self, world: World, client: Client, turn: Turn, history: list[str], request_id: str) -> None:
        self.world, self.turn = world, turn
        self.books = world.books
        self.id = request_id
        self.prompt = client.system + "".join(history) + turn.text
        self.tokens = TokenIds.of(self.prompt.encode()).to_bytes()
        messages = tuple({"role": "user", "content": text} for text in (client.system, *history, turn.text))
        self.request = GenerationRequest(
            request_id,
            Conversation(messages),
            max_tokens=turn.max_tokens,
            cache_salt=client.salt,
            session_id=client.session,
            service_class=client.tier,
        )
        room = world.plan.shape.context - len(self.prompt)
        self.expected = reply_to(self.prompt, min(turn.max_tokens, room)) if room > 0 else ""
        self.got = ""
        self.left = False
        self.left_after = 0
        self.asked_at_clear = 0

    def wrong(self, what: str) -> None:
        """Note a broken promise."""
        self.books.wrong(f"{self.id}: {what}")

    async def make(self, process: Process) -> Outcome:
        """Ask a process and hear the reply out, or leave. Cancelled when the connection is lost."""
        self.asked_at_clear = self.books.cleared_at
        crashes = len(process.failures)
        try:
            admission = await process.tree.serving.submit(self.request)
        except AskError as error:
            self._unanswered(error, process, crashes)
            return "error"
        if isinstance(admission, Refused):
            return self._refused(admission, process)
        process.streams.append(admission.stream)
        self._check_reuse(admission)
        try:
            return await self._hear(admission, process)
        finally:
            admission.stream.cancel()

    async def _hear(self, admission: Admitted, process: Process) -> Outcome:
        stream, turn = admission.stream, self.turn
        while True:
            events = await stream.take()
            for event in events:
                if isinstance(event, Delta):
                    self._heard(event)
                if event is stream.terminal:
                    self._check_dropped(stream, process)
                    return self._ended(event, events, admission, process)
            if turn.leaves_at is not None and stream.emitted_tokens >= turn.leaves_at:
                self._leave(stream)
            if turn.read_s:
                await asyncio.sleep(turn.read_s)

    def _leave(self, stream: RequestStream) -> None:
        if not self.left:
            self.left, self.left_after = True, stream.emitted_tokens
            stream.cancel()

    def _check_dropped(self, stream: RequestStream, process: Process) -> None:
        """Nobody decodes on for who has left: a step or two are under way, no more."""
        more = stream.emitted_tokens - self.left_after
        if self.left and more > IN_FLIGHT and not process.failures:
            self.wrong(f"{more} tokens were decoded after it was cancelled")

    def _heard(self, event: Delta) -> None:
        self.got += event.text
        if not self.expected.startswith(self.got):
            self.wrong(f"got {self.got!r}, expected {self.expected!r}")

    def _ended(
        self, end: StreamEvent, events: list[StreamEvent], admission: Admitted, process: Process
    ) -> Outcome:
        ends = [event for event in events if isinstance(event, Finished | Cancelled | Failed)]
        if len(ends) != 1 or events[-1] is not end:
            self.wrong(f"{len(ends)} ends, or something behind the end")
        match end:
            case Finished():
                self._check_finished(end, admission)
                return "finished"
            case Cancelled():
                if not self.left:
                    self.wrong("cancelled, and nobody asked for it")
                return "left"
            case Failed():
                blames = sum(self.id in blamed for blamed in process.engine.blamed)
                if end.code != "lane_crashed" or blames < 2:
                    self.wrong(f"failed: {end}, blamed {blames} times")
                return "failed"
            case _:
                self.wrong(f"{end} ended it")
                return "error"

    def _check_finished(self, end: Finished, admission: Admitted) -> None:
        if self.got != self.expected:
            self.wrong(f"ended with {self.got!r} instead of {self.expected!r}")
        counts = (end.prompt_tokens, end.completion_tokens, admission.prompt_tokens)
        if counts != (len(self.prompt), len(self.expected), len(self.prompt)):
            self.wrong(f"counted {counts} for {len(self.prompt)} and {len(self.expected)} tokens")
        if self.prompt.startswith(POISON) and self.world.plan.poison == "decode":
            self.wrong("poison was decoded")

    def _check_reuse(self, admission: Admitted) -> None:
        reuse, namespace = admission.reuse, self.request.namespace
        if (reuse.tier == "none") != (reuse.cached_tokens == 0):
            self.wrong(f"{reuse} contradicts itself")
        if reuse.cached_tokens:
            self.world.covered(f"hit {reuse.tier}")
            if reuse.cached_tokens >= len(self.prompt):
                self.wrong(f"{reuse} leaves nothing to compute of {len(self.prompt)} tokens")
            if not self.books.may_lend(namespace, self.tokens, reuse.cached_tokens, self.asked_at_clear):
                self.wrong(f"{reuse} was never published here since message {self.asked_at_clear}")

    def _refused(self, refused: Refused, process: Process) -> Outcome:
        shape = self.world.plan.shape
        self.world.covered(f"refused {refused.code}")
        fine = {
            "queue_full": True,
            "draining": process.tree.serving.draining,
            "context_length_exceeded": len(self.prompt) >= shape.context,
            "memory_exceeded": shape.kv_rows > 0 and shape.kv_rows < 3,
            "lane_crashed": self.prompt.startswith(POISON) or bool(process.engine.blamed),
        }
        if not fine.get(refused.code, False):
            self.wrong(f"refused: {refused}")
        return "error" if refused.code in {"queue_full", "draining"} else "refused"

    def _unanswered(self, error: AskError, process: Process, crashes: int) -> None:
        self.world.covered(f"unanswered {type(error).__name__}")
        troubled = len(process.failures) > crashes or process.system.closing
        match error:
            case ActorCrashed() | ActorGone() if troubled:
                return
            case AskTimeout() if self.world.plan.troubles or self.world.plan.poison:
                return
            case _:
                self.wrong(f"no answer: {error!r}")


async def live(world: World, client: Client) -> None:
    """Have the whole conversation, whatever happens to the server."""
    await asyncio.sleep(client.comes_s)
    history: list[str] = []
    for number, turn in enumerate(client.turns):
        await asyncio.sleep(turn.think_s)
        for again in range(1 + turn.again):
            outcome, call = await _ask(world, client, turn, history, f"{client.name}.{number}.{again}")
            world.covered(f"call {outcome}")
        if outcome == "finished" and call is not None:
            history += [turn.text, call.got]
            world.last_prompts[client.name] = (client, tuple(history))
        elif outcome in {"failed", "refused"}:
            return


async def _ask(
    world: World, client: Client, turn: Turn, history: list[str], request_id: str
) -> tuple[Outcome, Call | None]:
    """Ask again and again until the server has an answer, as clients do."""
    outcome: Outcome = "error"
    for attempt in range(TRIES):
        process = await world.serving()
        call = Call(world, client, turn, history, f"{request_id}.{attempt}")
        outcome = await _connected(call, process)
        world.log.say(f"{call.id} {outcome} {len(call.got)}")
        if outcome not in {"lost", "error"}:
            return outcome, call
        await asyncio.sleep(AGAIN_S)
    return outcome, None


async def _connected(call: Call, process: Process) -> Outcome:
    task: asyncio.Task[Any] = asyncio.ensure_future(call.make(process))
    process.calls.add(task)
    if call.turn.leaves_s is not None:
        await asyncio.wait({task}, timeout=call.turn.leaves_s)
        if not task.done():
            call.left = True
            task.cancel()
    await asyncio.wait({task})
    if task.cancelled():
        return "left" if call.left else "lost"
    return task.result()

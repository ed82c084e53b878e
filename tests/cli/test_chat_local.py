"""``samovar chat`` with a model in this process: the real tree, without HTTP."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.cli.chat.local import TreeSpeaker
from samovar.runtime.cli.chat.loop_thread import LoopThread
from samovar.runtime.cli.chat.speech import Done, GaveUp, ReplyFailed, Said, Wish
from samovar.runtime.config import load
from samovar.runtime.engine.errors import ModelUnreadable
from samovar.runtime.serve import StartError
from samovar.storage.fs import FileLock, OsFilesystem

from tests.kit.engine import FakeEngine
from tests.kit.tiny import TinyEngine

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from samovar.runtime.app import Engine
    from samovar.runtime.cli.chat.speech import Message, Piece

LONG = "Tell me a story about a king who lost his samovar in the sea."
HI: Sequence[Message] = [{"role": "user", "content": "Hi"}]


@dataclass
class Talk:
    """A speaker that is open, and what it remarked."""

    loop: LoopThread
    speaker: TreeSpeaker
    remarks: list[str] = field(default_factory=list)

    def reply(self, messages: Sequence[Message], wish: Wish | None = None) -> tuple[str, Done]:
        *said, done = self.loop.flow(self.speaker.reply(messages, wish or Wish(max_tokens=8)))
        assert isinstance(done, Done)
        return "".join(piece.text for piece in said if isinstance(piece, Said)), done


@contextmanager
def talking(engine: Engine, folder: Path | None = None) -> Generator[Talk]:
    ssd = "off" if folder is None else str(folder)
    config = load(assignments=[f"cache.ssd.dir={ssd}", "cache.ram.min_tokens=8"]).config
    remarks: list[str] = []
    with LoopThread() as loop:
        speaker = TreeSpeaker(config, engine, OsFilesystem(), remarks.append)
        try:
            loop.call(speaker.open())
            yield Talk(loop, speaker, remarks)
        finally:
            loop.call(speaker.close())


def tiny() -> TinyEngine:
    return TinyEngine("llama").with_options(publish_min_tokens=8)


def test_a_model_that_cannot_be_read_is_named_and_nothing_keeps_running() -> None:
    broken = FakeEngine(open_error=ModelUnreadable("no config.json"))
    with pytest.raises(StartError, match=r"model.path: no config.json"), talking(broken):
        pass


def test_a_prompt_that_is_too_long_is_refused_and_the_next_one_answered() -> None:
    with talking(FakeEngine(context_length=40)) as talk:
        with pytest.raises(ReplyFailed) as caught:
            talk.reply([{"role": "user", "content": "x" * 50}])
        assert caught.value.code == "context_length_exceeded"
        assert talk.reply(HI)[0] == "".join(f"{ord('H')}.{n} " for n in range(8))


def test_a_reply_that_is_stopped_leaves_its_row() -> None:
    engine = FakeEngine(gated=True)
    with talking(engine) as talk:
        flow = talk.loop.flow(talk.speaker.reply(HI, Wish(max_tokens=100)))
        engine.allow(3)
        pieces: list[Piece] = []
        for piece in flow:
            pieces.append(piece)
            flow.stop()
        assert flow.stopped
        assert not any(isinstance(piece, Done) for piece in pieces)
        engine.gated = False
        engine.allow(10)
        assert talk.reply(HI)[1].tokens == 8


def test_a_lane_that_crashes_once_costs_nothing() -> None:
    engine = FakeEngine()
    with talking(engine) as talk:
        engine.crash = RuntimeError("boom")
        assert talk.reply(HI)[1].tokens == 8
        assert engine.opened == 2


def test_a_tree_that_gives_up_ends_the_reply() -> None:
    engine = FakeEngine(gated=True)
    with talking(engine) as talk:
        flow = talk.loop.flow(talk.speaker.reply(HI, Wish(max_tokens=100)))
        engine.allow(3)
        pieces = iter(flow)
        assert isinstance(next(pieces), Said)
        talk.loop.call(_give_up(talk.speaker))
        with pytest.raises(GaveUp):
            list(pieces)
        with pytest.raises(GaveUp):
            talk.reply(HI)


async def _give_up(speaker: TreeSpeaker) -> None:
    """Crash a part of the tree until the root gives up."""
    system = speaker._system
    assert system is not None
    ended = asyncio.ensure_future(system.wait())
    while not ended.done():
        system.crash("monitor")
        await asyncio.wait({ended}, timeout=0.05)


def test_figures_and_sampling_are_those_of_the_request() -> None:
    with talking(FakeEngine()) as talk:
        assert talk.loop.call(talk.speaker.introduce()) == "fake"
        _, done = talk.reply(HI, Wish(max_tokens=3, temperature=0.0, seed=1))
        assert (done.cut, done.tokens, done.prompt_tokens, done.cached_tokens) == (True, 3, 2, 0)


def test_a_prompt_is_cached_in_memory_and_on_disk_for_the_next_run(tmp_path: Path) -> None:
    messages: list[Message] = [{"role": "user", "content": LONG}]
    with talking(tiny(), tmp_path / "kv") as talk:
        first, cold = talk.reply(messages)
        messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "Go on."}]
        _, warm = talk.reply(messages)
    assert (cold.tier, cold.cached_tokens) == ("none", 0)
    assert warm.tier == "ram"
    assert (warm.cached_tokens or 0) > len(LONG)
    with talking(tiny(), tmp_path / "kv") as again:
        second, restored = again.reply(messages[:1])
        assert again.remarks == []
    assert (second, restored.tier) == (first, "ssd")
    assert (restored.cached_tokens or 0) >= len(LONG)


def test_a_disk_cache_in_use_is_told_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    folder.mkdir()
    with FileLock.acquire(folder / "LOCK"), talking(FakeEngine(), folder) as talk:
        assert talk.reply(HI)[1].tokens == 8
        assert talk.remarks[0].startswith("the disk cache is in use")
        assert "--url" in talk.remarks[1]
    assert [path.name for path in folder.iterdir()] == ["LOCK"]

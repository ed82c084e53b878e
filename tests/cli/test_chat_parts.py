"""The parts of ``samovar chat`` that need neither a server nor a terminal."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import stat
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samovar.runtime.cli.chat.chunks import ChunkReader
from samovar.runtime.cli.chat.dialogue import Dialogue
from samovar.runtime.cli.chat.events import MAX_EVENT_BYTES, EventTooLarge, event_data
from samovar.runtime.cli.chat.history import KEPT, History
from samovar.runtime.cli.chat.loop_thread import LoopThread
from samovar.runtime.cli.chat.screen import Screen, figures, harmless
from samovar.runtime.cli.chat.slash import Slash
from samovar.runtime.cli.chat.speech import Done, ReplyFailed, Said, Thought
from samovar.runtime.cli.chat.words import split_words

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path


# -- what reaches the terminal


@given(st.text())
def test_no_control_character_is_left_and_nothing_else_changes(text: str) -> None:
    shown = harmless(text)
    assert len(shown) == len(text)
    for before, after in zip(text, shown, strict=True):
        if unicodedata.category(before) in {"Cc", "Cs"} and before not in "\t\n":
            assert after == "\ufffd" or 0x2400 <= ord(after) < 0x2420
        elif before != after:
            assert unicodedata.bidirectional(before) in {
                "LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI",
            }  # fmt: skip


def test_emoji_and_scripts_that_join_stay_whole() -> None:
    for text in ("👩‍👩‍👧", "می‌خواهم", "Ü\u0308", "日本語"):
        assert harmless(text) == text


def test_remarks_begin_on_a_line_of_their_own() -> None:
    out = io.StringIO()
    screen = Screen(out, out, styled=False)
    screen.say("half")
    screen.remark("note")
    screen.think("hm\n")
    screen.part()
    assert out.getvalue() == "half\nnote\nhm\n"


def test_figures_say_what_is_known() -> None:
    assert figures(Done()) == ""
    assert figures(Done(cut=True, tokens=1)) == "1 token · cut at the token limit"
    known = Done(tokens=12, prompt_tokens=90, cached_tokens=80, tier="ssd", tokens_per_s=4.06)
    assert figures(known) == "12 tokens at 4.1 tokens/s · 80 of 90 prompt tokens cached (ssd)"


# -- server-sent events


def read_events(chunks: Sequence[bytes]) -> list[str]:
    async def feed() -> AsyncGenerator[bytes]:
        for chunk in chunks:
            yield chunk

    async def gather() -> list[str]:
        return [data async for data in event_data(feed())]

    return asyncio.run(gather())


@pytest.mark.parametrize(
    "chunks", [[b"data: " + b"x" * (MAX_EVENT_BYTES + 1)], [b"data: xxxxxxxxx\n" * 300_000]]
)
def test_an_endless_event_is_refused(chunks: list[bytes]) -> None:
    with pytest.raises(EventTooLarge):
        read_events(chunks)


@given(st.lists(st.integers(0, 60), max_size=6), st.sampled_from([b"\n", b"\r\n"]))
def test_events_may_be_cut_anywhere(cuts: list[int], end: bytes) -> None:
    lines = [
        b": keep-alive",
        b"",
        "data: {ü}".encode(),
        b"",
        b"event: x",
        b"data:a",
        b"data: b",
        b"",
        b"data: cut",
    ]
    whole = end.join(lines)
    places = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    chunks = [whole[start:stop] for start, stop in itertools.pairwise(places)]
    assert read_events(chunks) == ["{ü}", "a\nb"]


# -- chunks of any server's make


def reader() -> ChunkReader:
    seconds = iter(range(100))
    return ChunkReader(lambda: float(next(seconds)))


def chunk(delta: object = None, reason: str | None = None, **more: object) -> str:
    return json.dumps({"choices": [{"delta": delta, "finish_reason": reason}], **more})


def test_a_stream_that_breaks_off_is_a_failure() -> None:
    read = reader()
    assert list(read.read(chunk({"content": "It"}))) == [Said("It")]
    with pytest.raises(ReplyFailed, match="early") as caught:
        read.done()
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        ({"message": "gone", "code": "no_memory"}, "gone", "no_memory"),
        ("gone", "gone", "server_error"),
        ({"x": 1}, "x", "server_error"),
    ],
)
def test_an_error_event_is_a_failure(error: object, message: str, code: str) -> None:
    with pytest.raises(ReplyFailed, match=message) as caught:
        list(reader().read(json.dumps({"error": error})))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "data",
    ["", "null", "[]", "x", "{}", '{"choices": null}', '{"choices": [null]}', '{"choices": [{"delta": "x"}]}',
     '{"choices": [{"delta": {"content": 5}}], "usage": [], "error": null}'],
)  # fmt: skip
def test_what_makes_no_sense_says_nothing(data: str) -> None:
    assert list(reader().read(data)) == []


def test_reasoning_and_figures_are_read_under_their_usual_names() -> None:
    read = reader()
    said = [
        *read.read(chunk({"reasoning_content": "hm"})),
        *read.read(chunk({"reasoning": "so", "content": "A"})),
    ]
    assert said == [Thought("hm"), Thought("so"), Said("A")]
    usage: dict[str, Any] = {
        "completion_tokens": 3,
        "prompt_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    list(read.read(chunk({}, "length", usage=usage | {"samovar": {"tier": "ram"}})))
    list(read.read("[DONE]"))
    assert read.done() == Done(
        cut=True, tokens=3, prompt_tokens=9, cached_tokens=8, tier="ram", tokens_per_s=2.0
    )


# -- the conversation and its commands


def test_a_turn_without_a_reply_is_taken_back() -> None:
    dialogue = Dialogue("Be brief.")
    dialogue.ask("one")
    dialogue.answer("")
    dialogue.ask("two\ud800")
    dialogue.answer("three")
    assert [message["content"] for message in dialogue.messages] == ["Be brief.", "two?", "three"]
    dialogue.direct("")
    dialogue.clear()
    assert dialogue.messages == []


def slash(dialogue: Dialogue) -> tuple[Slash, io.StringIO]:
    out = io.StringIO()
    return Slash(dialogue, Screen(out, out, styled=False)), out


def test_save_keeps_what_is_there_and_saves_again_what_it_saved(tmp_path: Path) -> None:
    dialogue = Dialogue()
    dialogue.ask("Hi")
    dialogue.answer("Hello.\n")
    commands, out = slash(dialogue)
    taken, document, text = tmp_path / "taken", tmp_path / "talk.json", tmp_path / "talk.md"
    taken.write_text("mine")
    for name in (taken, tmp_path / "none" / "x", document, text, text, ""):
        assert commands.run(f"/save {name}")
    assert taken.read_text() == "mine"
    assert json.loads(document.read_text()) == {"messages": dialogue.messages}
    assert text.read_text() == "## User\n\nHi\n\n## Assistant\n\nHello.\n"
    assert stat.S_IMODE(text.stat().st_mode) == 0o600
    told = out.getvalue().splitlines()
    assert told[0] == f"{taken} is there already; choose another name"
    assert told[1].startswith("not saved: ")
    assert told[2:] == [
        *(f"saved {path}" for path in (document, text, text)),
        "/save needs the name of a file",
    ]


def test_commands_steer_the_conversation() -> None:
    dialogue = Dialogue("old")
    dialogue.ask("Hi")
    commands, out = slash(dialogue)
    assert commands.run("/system Be brief.")
    assert dialogue.system == "Be brief."
    assert commands.run("/system -")
    assert dialogue.system is None
    assert commands.run("/help")
    assert commands.run("/clear ")
    assert dialogue.messages == []
    assert not commands.run("/quit")
    assert "/system  TEXT sets" in out.getvalue()


# -- the words on the command line


@pytest.mark.parametrize(
    ("words", "model", "prompt"),
    [
        ([], None, None),
        (["smollm2"], "smollm2", None),
        (["smolm2"], "smolm2", None),
        (["org/name"], "org/name", None),
        (["./nowhere"], "./nowhere", None),
        (["pypi:nothing"], "pypi:nothing", None),
        (["Hello"], None, "Hello"),
        (["What is 1/2 of 6?"], None, "What is 1/2 of 6?"),
        (["smollm2", "smollm2"], "smollm2", "smollm2"),
    ],
)
def test_a_word_alone_is_a_model_if_it_looks_like_one(
    words: list[str], model: str | None, prompt: str | None
) -> None:
    assert split_words(words) == (model, prompt)


# -- what is remembered


def test_history_survives_what_it_finds_and_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    history = History(path)
    assert history.load() == []
    for number in range(2 * KEPT + 1):
        history.add(f"line {number}\nof two")
    with path.open("a") as file:
        file.write('half a li\n{"a": 1}\n\n')
    assert history.load()[-1] == f"line {2 * KEPT}\nof two"
    assert len(path.read_text().splitlines()) == KEPT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not history.failed


def test_a_history_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history")
    assert history.load() == []
    history.add("x")
    assert history.failed


# -- the loop's thread


def test_a_flow_brings_its_pieces_then_its_failure() -> None:
    async def pieces() -> AsyncGenerator[int]:
        yield 1
        yield 2
        raise ReplyFailed("no more", "x")

    seen: list[int] = []
    with LoopThread() as loop:
        flow = loop.flow(pieces())
        with pytest.raises(ReplyFailed):
            seen.extend(iter(flow))
        flow.close()
    assert seen == [1, 2]
    assert not flow.stopped


def test_a_flow_that_is_stopped_closes_its_generator() -> None:
    closed: list[bool] = []

    async def pieces() -> AsyncGenerator[int]:
        try:
            yield 1
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append(True)

    with LoopThread() as loop:
        flow = loop.flow(pieces())
        for _ in flow:
            flow.stop()
        assert (flow.stopped, closed) == (True, [True])
        early = loop.flow(pieces())
        early.close()
        assert early.stopped

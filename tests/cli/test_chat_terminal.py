"""``samovar chat`` at a terminal: a conversation, its keys, what it remembers."""

from __future__ import annotations

import asyncio
import json
import stat
from typing import TYPE_CHECKING

from samovar.runtime.engine.port import Delta, Prefilled

from tests.http.fakes import FakeServing, conversation, finished

from .chat_kit import Terminal, listening

if TYPE_CHECKING:
    from pathlib import Path

    from samovar.actors.requests import GenerationRequest
    from samovar.actors.stream import RequestStream


async def script(stream: RequestStream, request: GenerationRequest) -> None:
    """Count the messages; at "go on" never come to an end."""
    messages = conversation(request).messages
    stream.push(Prefilled(request.id, 7, 7))
    stream.push(Delta(request.id, f"\x1b[31mreply to {len(messages)}", (1,)))
    if messages[-1]["content"] == "go on":
        await asyncio.get_running_loop().create_future()
    stream.push(finished(request.id, 1))


def contents(serving: FakeServing, index: int) -> list[str]:
    return [str(message["content"]) for message in conversation(serving.requests[index]).messages]


def test_a_conversation_with_a_stopped_reply_and_commands(tmp_path: Path) -> None:
    serving = FakeServing(script)
    with listening(serving) as url, Terminal(tmp_path, "chat", "--url", url, "--system", "Be brief.") as it:
        assert f"smollm2 at {url}" in it.wait("> ")
        it.type("Hi\n")
        shown = it.wait("> $")
        assert "␛[31mreply to 2\r\n" in shown
        assert "\x1b[31m" not in shown
        assert "\x1b[2m1 token · 0 of 7 prompt tokens cached\x1b[0m" in shown
        it.type("go on\n")
        it.wait("reply to 4")
        it.type("\x03")
        assert "(stopped)" in it.wait("> $")
        it.type("and \\\n")
        it.wait(r"\n\. $")
        it.type("now?\n")
        it.wait("reply to 6[^>]*> $")
        it.type("/paint\n")
        assert "there is no /paint" in it.wait("> $")
        it.type("/clear\n")
        it.wait("anew[^>]*> $")
        it.type("//path\n")
        it.wait("reply to 2[^>]*> $")
        it.type("half a li\x03")
        it.wait("leaves[^>]*> $")
        it.type("\x04")
        assert it.end()[0] == 0
    assert len(serving.cancelled) == 1
    assert contents(serving, 2) == [
        "Be brief.",
        "Hi",
        "\x1b[31mreply to 2",
        "go on",
        "\x1b[31mreply to 4",
        "and \nnow?",
    ]
    assert contents(serving, 3) == ["Be brief.", "/path"]


def test_what_was_typed_is_remembered_privately_and_only_if_wanted(tmp_path: Path) -> None:
    serving = FakeServing(script)
    with listening(serving) as url:
        for keys, options in (
            (("Hi", "\n"), ()),
            (("secret", "\n"), ("--no-history",)),
            (("\x1b[A", "\x1b[A\n"), ()),
        ):
            with Terminal(tmp_path, "chat", "--url", url, *options) as it:
                it.wait("> ")
                it.type("".join(keys))
                it.wait("reply to 1[^>]*> $")
                it.type("/quit\n")
                assert it.end()[0] == 0
    assert [contents(serving, index) for index in range(3)] == [["Hi"], ["secret"], ["Hi"]]
    file = tmp_path / "samovar" / "chat-history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [json.loads(line) for line in file.read_text().splitlines()] == ["Hi", "/quit", "Hi", "/quit"]


def test_a_server_that_is_not_there_ends_it(tmp_path: Path) -> None:
    with Terminal(tmp_path, "chat", "--url", "http://127.0.0.1:9") as it:
        code, shown = it.end()
    assert code == 1
    assert "is the server running?" in shown


def test_an_answer_that_is_interrupted_is_a_failure(tmp_path: Path) -> None:
    serving = FakeServing(script)
    with listening(serving) as url:
        with Terminal(tmp_path, "chat", "--url", url, "go on") as it:
            it.wait("reply to 1")
            it.type("\x03")
            code, shown = it.end()
        assert (code, "interrupted" in shown, "Traceback" in shown) == (1, True, False)
    assert len(serving.cancelled) == 1
    assert not (tmp_path / "samovar").exists()

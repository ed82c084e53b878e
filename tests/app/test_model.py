"""The main job with the real default model, in a process of its own."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from .process import ServerProcess, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

CAPITAL = "What is the capital of France? Answer briefly."
STORIES = [f"Write a story about {hero}." for hero in ("a dog", "an old king", "the sea", "two robots")]


@pytest.fixture(scope="module")
def server(default_model_dir: Path) -> Iterator[ServerProcess]:
    with serve() as process:
        yield process.wait_ready()


def serve(*arguments: str) -> ServerProcess:
    return ServerProcess("-m", "samovar.runtime.cli", "serve", "--port", "0", *arguments)


def test_the_capital_of_france_is_the_same_streamed_and_not(server: ServerProcess) -> None:
    status, whole = server.chat(CAPITAL)
    assert status == 200
    reply = whole["choices"][0]["message"]["content"]
    assert "Paris" in reply
    events = server.stream(CAPITAL).events()
    assert events[-1] == "[DONE]"
    assert text_of(events) == reply
    assert whole["choices"][0]["finish_reason"] == "stop"


def test_four_requests_at_once_share_one_batch_and_say_what_they_say_alone(server: ServerProcess) -> None:
    alone = [reply_to(server, story) for story in STORIES]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda story: reply_to(server, story), STORIES))
    assert together == alone
    assert len(set(alone)) == 4
    _, stats = server.call("GET", "/stats")
    assert stats["lanes"][0]["peak_rows"] == 4


def test_a_stop_string_ends_the_reply_and_never_shows(server: ServerProcess) -> None:
    status, whole = server.chat(CAPITAL, stop=["Paris"])
    assert status == 200
    assert whole["choices"][0]["message"]["content"] == "The capital of France is "
    assert whole["choices"][0]["finish_reason"] == "stop"


def test_the_same_seed_gives_the_same_text_whatever_shares_the_batch(server: ServerProcess) -> None:
    fields = {"temperature": 1.0, "seed": 7, "max_tokens": 12}
    alone = server.chat(STORIES[0], **fields)[1]["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(server.chat, story, temperature=1.0, max_tokens=12) for story in STORIES[1:3]]
        shared = pool.submit(server.chat, STORIES[0], **fields)
        assert shared.result()[1]["choices"][0]["message"]["content"] == alone
        for other in others:
            assert other.result()[0] == 200


def test_a_second_start_converts_nothing_again(default_model_dir: Path) -> None:
    weights = default_model_dir / "model.safetensors"
    before = weights.stat()
    with serve() as process:
        process.wait_ready()
        process.signal(signal.SIGTERM)
        assert process.end() == 0
        assert not any("download" in str(line) or "convert" in str(line) for line in process.lines)
    after = weights.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_short_question_comes_back_from_disk_after_sigkill_with_the_settings_as_they_are(
    tmp_path: Path, default_model_dir: Path
) -> None:
    def ask(process: ServerProcess) -> tuple[str, str, int]:
        status, body = process.chat(CAPITAL, max_tokens=8)
        assert status == 200
        own = body["usage"]["samovar"]
        assert own["cached_tokens"] in {0, body["usage"]["prompt_tokens"] - 1}
        return body["choices"][0]["message"]["content"], own["tier"], own["cached_tokens"]

    ssd = ("--ssd", os.fspath(tmp_path / "kv"))
    with serve(*ssd) as process:
        text, tier, _ = ask(process.wait_ready())
        assert tier == "none"
        again = ask(process)
        assert again[:2] == (text, "ram")
        status, report = process.call("POST", "/admin/cache/flush")
        assert (status, report["durable"]) == (200, True)
        process.signal(signal.SIGKILL)
        process.end()
    with serve(*ssd) as process:
        assert ask(process.wait_ready()) == (text, "ssd", again[2])


def test_an_unreadable_model_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with serve(str(tmp_path)) as process:
        assert process.end(60) == 2
        text = " ".join(str(line) for line in process.lines)
        assert "model.path" in text
        assert str(tmp_path) in text


def test_a_missing_model_directory_is_named(tmp_path: Path) -> None:
    with serve(os.fspath(tmp_path / "nowhere")) as process:
        assert process.end(60) == 2
        assert "nowhere" in " ".join(str(line) for line in process.lines)


def reply_to(server: ServerProcess, content: str) -> str:
    status, body = server.chat(content, max_tokens=16)
    assert status == 200
    return body["choices"][0]["message"]["content"]

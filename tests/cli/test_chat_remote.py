"""``samovar chat --url``: what it refuses, what it sends, what it prints."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from samovar.actors.requests import Refused
from samovar.runtime.cli import main
from samovar.runtime.cli.chat.remote import base_url
from samovar.runtime.cli.chat.speech import ReplyFailed
from samovar.runtime.engine.port import Delta, Failed

from tests.http.fakes import FakeServing, conversation, finished

from .chat_kit import listening

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samovar.actors.requests import GenerationRequest
    from samovar.actors.stream import RequestStream

KEY = "sk-very-secret"


@dataclass
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def chat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    monkeypatch.delenv("SAMOVAR_API_KEY", raising=False)

    def run(*args: str, piped: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        code = main(["chat", *args])
        return Ended(code, *capsys.readouterr())

    return run


def saying(*texts: str) -> FakeServing:
    async def script(stream: RequestStream, request: GenerationRequest) -> None:
        for token, text in enumerate(texts):
            stream.push(Delta(request.id, text, (token,)))
        stream.push(finished(request.id, len(texts)))

    return FakeServing(script)


def sent(serving: FakeServing) -> Any:
    return conversation(serving.requests[-1]).messages


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "http://a b", "http://user@host", "http://host/?q", ""]
)
def test_what_is_no_address_is_a_usage_error(chat: Callable[..., Ended], url: str) -> None:
    ended = chat("--url", url, "Hi")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("samovar: error: --url: ")


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:8080", "http://host:8080"),
        ("http://host:8080/v1/", "http://host:8080"),
        ("host:8080", "http://host:8080"),
        ("https://[::1]:8080/samovar/v1", "https://[::1]:8080/samovar"),
    ],
)
def test_an_address_may_be_written_in_several_ways(url: str, base: str) -> None:
    assert base_url(url) == base


def test_nobody_there_is_one_clear_line(chat: Callable[..., Ended]) -> None:
    ended = chat("--url", "http://127.0.0.1:9", "Hi")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "samovar: error: http://127.0.0.1:9: no connection (Connection refused); is the server running?\n"
    )


@pytest.mark.parametrize("args", [("",), (" \n",), ()])
def test_an_empty_prompt_is_a_usage_error(chat: Callable[..., Ended], args: tuple[str, ...]) -> None:
    ended = chat("--url", "http://127.0.0.1:9", *args, piped=b"\n\n")
    assert (ended.code, ended.err) == (2, "samovar: error: the prompt is empty\n")


@pytest.mark.parametrize(
    "args",
    [
        ("a", "b", "c"),
        ("--temperature", "3"),
        ("--temperature", "nan"),
        ("--max-tokens", "0"),
        ("--seed", "x"),
        ("--urls", "x"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(args: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["chat", *args])
    assert ended.value.code == 2


def test_a_missing_key_says_how_to_give_one(
    chat: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(api_keys=(KEY,)) as url:
        refused = chat("--url", url, "Hi")
        given = chat("--url", url, "--api-key", KEY, "Hi")
        monkeypatch.setenv("SAMOVAR_API_KEY", KEY)
        from_environment = chat("--url", url, "Hi")
    assert (refused.code, refused.out) == (1, "")
    assert "the server answered 401: " in refused.err
    assert "SAMOVAR_API_KEY" in refused.err
    assert (given.code, from_environment.code) == (0, 0)
    assert KEY not in refused.err + given.err + given.out


def test_a_model_that_is_not_served_is_told_in_the_servers_words(chat: Callable[..., Ended]) -> None:
    with listening() as url:
        ended = chat("gpt-9", "--url", url, "Hi")
    assert (ended.code, ended.out) == (1, "")
    assert "404" in ended.err
    assert "smollm2" in ended.err


def test_a_refusal_is_told(chat: Callable[..., Ended]) -> None:
    full = FakeServing(refuse=lambda _: Refused("queue_full", "Too many wait.", retry_after_s=1.0))
    with listening(full) as url:
        ended = chat("--url", url, "Hi")
    assert (ended.code, ended.out) == (1, "")
    assert "429: Too many wait." in ended.err


def test_a_failure_behind_the_first_words_is_no_success(chat: Callable[..., Ended]) -> None:
    async def script(stream: RequestStream, request: GenerationRequest) -> None:
        stream.push(Delta(request.id, "It is", (1,)))
        stream.push(Failed(request.id, "no_memory", "secret detail"))

    with listening(FakeServing(script)) as url:
        ended = chat("--url", url, "Hi")
    assert ended.code == 1
    assert "no_memory" in ended.err
    assert "secret detail" not in ended.err


def test_only_the_reply_is_printed(chat: Callable[..., Ended]) -> None:
    with listening() as url:
        ended = chat("--url", f"{url}/v1", "Capital of France?")
    assert ended == Ended(0, "It is Paris\n", "")


def test_a_line_at_the_end_of_a_reply_is_not_doubled(chat: Callable[..., Ended]) -> None:
    with listening(saying("one\n", "two\n")) as url:
        assert chat("--url", url, "Hi").out == "one\ntwo\n"


def test_what_is_piped_in_is_the_prompt(chat: Callable[..., Ended]) -> None:
    serving = saying("ok")
    with listening(serving) as url:
        ended = chat("default", "--url", url, "--system", "Be brief.", piped="Grüße\xff\n".encode("latin-1"))
    assert ended == Ended(0, "ok\n", "")
    assert [dict(message) for message in sent(serving)] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Gr\ufffd\ufffde\ufffd"},
    ]


def test_wishes_are_sent_and_nothing_else(chat: Callable[..., Ended]) -> None:
    serving = saying("ok")
    wishes = ("--temperature", "0.5", "--seed", "7", "--max-tokens", "9")
    with listening(serving) as url:
        assert chat("--url", url, *wishes, "default", "Hi there").code == 0
        assert chat("--url", url, "Hi there").code == 0
    wished, plain = serving.requests
    assert (wished.sampling.temperature, wished.sampling.seed, wished.max_tokens) == (0.5, 7, 9)
    assert wished.temperature_given
    assert (plain.temperature_given, plain.max_tokens, plain.sampling.seed) == (False, None, None)


@pytest.mark.parametrize(
    ("args", "prompt"),
    [
        (("Hi",), "Hi"),
        (("default", "Hi"), "Hi"),
        (("--", "-x"), "-x"),
        (("--", "--help"), "--help"),
        (("default", "--seed", "7", "--", "-1 or --1?"), "-1 or --1?"),
        (("--", "default", "--"), "--"),
    ],
)
def test_a_word_behind_the_address_is_the_prompt(
    chat: Callable[..., Ended], args: tuple[str, ...], prompt: str
) -> None:
    serving = saying("ok")
    with listening(serving) as url:
        assert chat("--url", url, *args).code == 0
    assert sent(serving)[0]["content"] == prompt


def test_a_reply_cannot_steer_the_terminal(chat: Callable[..., Ended]) -> None:
    evil = ("\x1b]0;owned\x07", "\x1b", "[2J", "a\rb\tc", "\x9b31m", "\u202eevil", "\x7f")
    with listening(saying(*evil)) as url:
        ended = chat("--url", url, "Hi")
    assert ended.out == "␛]0;owned␇␛[2Ja␍b\tc\ufffd31m\ufffdevil\ufffd\n"


def test_a_servers_error_cannot_steer_the_terminal(chat: Callable[..., Ended]) -> None:
    message = "\x1b[2Jgone"
    with listening(FakeServing(refuse=lambda _: Refused("queue_full", message))) as url:
        ended = chat("--url", url, "Hi")
    assert ended.code == 1
    assert "\x1b" not in ended.err
    assert "gone" in ended.err


def test_a_socket_file_will_do(chat: Callable[..., Ended], tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(unix_socket=path):
        assert chat("--url", f"unix:{path}", "Hi there").out == "It is Paris\n"


def test_bad_urls_carry_a_code() -> None:
    with pytest.raises(ReplyFailed) as caught:
        base_url("ftp://x")
    assert (caught.value.code, caught.value.usage, json.dumps(caught.value.retryable)) == (
        "bad_url",
        True,
        "false",
    )

"""SIGHUP: what can change does, what cannot is named, and what is broken changes nothing."""

from __future__ import annotations

import io
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.config import Config, Loaded, Logging, load
from samovar.runtime.logs import configure_logging, get_logger, reset_logging
from samovar.runtime.reload import Reloader

from tests.http.fakes import run

from .process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logging(Logging(format="json"), stream)
    yield stream
    reset_logging()


def events(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[server\n", "valid TOML"),
        ("[server]\nport = 'x'\n", "server.port"),
        ("[nothing]\n", "unknown key"),
        (None, "a readable TOML file"),
    ],
)
def test_a_broken_file_is_told_and_changes_nothing(
    tmp_path: Path, log: io.StringIO, text: str | None, wrong: str
) -> None:
    file = tmp_path / "mine.toml"
    if text is not None:
        file.write_text(text)
    adopted: list[Config] = []
    reloader = Reloader(Config(), lambda: load([file]), adopted.append)
    assert not run(reloader.reload())
    assert (adopted, reloader.config) == ([], Config())
    (line,) = events(log)
    assert (line["event"], line["level"]) == ("reload_refused", "error")
    assert wrong in " ".join(line["problems"])


def test_what_is_wrong_with_a_key_is_told_without_the_key(tmp_path: Path, log: io.StringIO) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[server]\napi_keys = ["sk secret"]\n')
    assert not run(Reloader(Config(), lambda: load([file]), lambda _: None).reload())
    assert "server.api_keys" in log.getvalue()
    assert "secret" not in log.getvalue()


def test_logging_follows_at_once_and_other_loggers_with_it(log: io.StringIO) -> None:
    wanted: list[Loaded] = [load([], {}, ["logging.level=error", "logging.format=json"])]
    reloader = Reloader(Config(), wanted.pop, lambda _: None)
    early = get_logger("samovar.early")
    assert run(reloader.reload())
    early.info("quiet")
    early.error("loud")
    assert [line["event"] for line in events(log)] == ["loud"]


def test_what_needs_a_restart_is_named_every_time(log: io.StringIO) -> None:
    adopted: list[Config] = []
    loaded = load([], {}, ["server.port=1234", "model.aliases=a"])
    reloader = Reloader(Config(), lambda: loaded, adopted.append)
    assert run(reloader.reload())
    assert run(reloader.reload())
    assert [config.model.aliases for config in adopted] == [("a",), ("a",)]
    assert {config.server.port for config in adopted} == {8080}
    told = [(line["event"], line.get("applied", line.get("keys"))) for line in events(log)]
    assert told == [
        ("reloaded", ["model.aliases"]),
        ("reload_needs_restart", ["server.port"]),
        ("reloaded", []),
        ("reload_needs_restart", ["server.port"]),
    ]


@pytest.mark.timeout(60)
def test_a_running_server_takes_new_keys_and_names_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[model]\naliases = ["first"]\n')
    command = ["-m", "tests.kit.serve", "--config", str(file), "--step-ms", "5", "--set", "server.port=0"]
    with ServerProcess(*command).wait_ready() as server:
        assert server.chat("ab", model="first", max_tokens=1)[0] == 200
        stream = server.stream("ab", max_tokens=100)
        stream.next()
        file.write_text('[model]\naliases = ["second"]\n[lanes]\nbatch = 3\n')
        server.signal(signal.SIGHUP)
        assert server.wait_line("reload_needs_restart")["keys"] == ["lanes.batch"]
        assert server.wait_line("reloaded")["applied"] == ["model.aliases"]
        assert server.chat("ab", model="first", max_tokens=1)[0] == 404
        assert server.chat("ab", model="second", max_tokens=1)[0] == 200
        file.write_text('[server]\napi_keys = ["sk-1"\n')
        server.signal(signal.SIGHUP)
        server.wait_line("reload_refused")
        assert server.chat("ab", model="second", max_tokens=1)[0] == 200
        file.write_text('[server]\napi_keys = ["sk-1"]\n')
        server.signal(signal.SIGHUP)
        assert server.wait_status(401) == "invalid_api_key"
        assert stream.events()[-1] == "[DONE]"
        server.signal()
        assert server.end() == 0

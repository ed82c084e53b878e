from __future__ import annotations

import io
import json
import logging
import warnings
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.config import Logging
from samovar.runtime.logs import (
    RequestLine,
    adopt_library_loggers,
    configure_logging,
    get_logger,
    log_request,
    reset_logging,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail(error: Exception, prompt: str = "") -> None:
    """Raise ``error``, caused by a KeyError, from a frame that holds a prompt."""
    try:
        {}[0]
    except KeyError as cause:
        raise error from cause


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logging(Logging(level="info"), stream)
    yield stream
    reset_logging()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    "value",
    [object(), 2**70, "\ud800", {1: {2, 3}}, float("nan"), b"\xff", ValueError("x")],
    ids=["object", "huge", "surrogate", "set", "nan", "bytes", "error"],
)
def test_no_value_keeps_a_line_from_being_one_json_object(stream: io.StringIO, value: object) -> None:
    get_logger("samovar.test").info("odd", value=value)
    (line,) = lines(stream)
    assert "odd" in line["event"]


def test_an_exception_is_structured_and_shows_no_local_variable(stream: io.StringIO) -> None:
    secret = "my secret prompt".replace(" ", "-")
    try:
        fail(ValueError("outer"), secret)
    except ValueError:
        get_logger("samovar.test").exception("crashed")
    (line,) = lines(stream)
    assert [(part["exc_type"], part["exc_value"]) for part in line["exception"]] == [
        ("ValueError", "outer"),
        ("KeyError", "0"),
    ]
    assert line["exception"][0]["frames"][-1]["name"] == "fail"
    assert secret not in stream.getvalue()


def test_a_console_traceback_shows_no_local_variable() -> None:
    stream = io.StringIO()
    secret = "my secret prompt".replace(" ", "-")
    configure_logging(Logging(format="console"), stream)
    try:
        fail(ValueError("outer"), secret)
    except ValueError:
        get_logger("samovar.test").exception("crashed")
    finally:
        reset_logging()
    assert "ValueError: outer" in stream.getvalue()
    assert secret not in stream.getvalue()


def test_library_lines_go_through_the_same_pipeline(stream: io.StringIO) -> None:
    try:
        fail(OSError("gone"))
    except OSError:
        logging.getLogger("aiohttp.server").exception("could not %s", "serve", extra={"peer": "unix"})
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("could not serve", "error", "aiohttp.server")
    assert (line["peer"], line["exception"][0]["exc_type"]) == ("unix", "OSError")


def test_chatty_libraries_are_heard_only_when_they_warn(stream: io.StringIO) -> None:
    for name in ("asyncio", "aiohttp.access", "httpx"):
        logging.getLogger(name).info("chat")
        logging.getLogger(name).warning("listen")
    assert [line["event"] for line in lines(stream)] == ["listen"] * 3


def test_a_library_with_a_handler_of_its_own_is_adopted_and_writes_once(stream: io.StringIO) -> None:
    own = io.StringIO()
    library = logging.getLogger("transformers")
    library.addHandler(logging.StreamHandler(own))
    library.propagate = False
    adopt_library_loggers()
    logging.getLogger("transformers.models").warning("hello")
    assert own.getvalue() == ""
    assert [line["event"] for line in lines(stream)] == ["hello"]


def test_python_warnings_are_lines_too(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
    (line,) = lines(stream)
    assert "old call" in line["event"]
    assert line["logger"] == "py.warnings"


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure_logging(Logging(level="warning"), stream)
    try:
        get_logger("samovar.test").info("quiet")
        logging.getLogger("mlx_lm").info("quiet")
        get_logger("samovar.test").warning("loud")
        logging.getLogger("mlx_lm").warning("loud")
    finally:
        reset_logging()
    assert [line["event"] for line in lines(stream)] == ["loud", "loud"]


def test_times_are_utc_iso_8601(stream: io.StringIO) -> None:
    get_logger("samovar.test").info("now")
    logging.getLogger("mlx_lm").info("now")
    for line in lines(stream):
        assert datetime.fromisoformat(line["timestamp"]).utcoffset() == timedelta(0)


def test_setting_up_again_replaces_the_first_set_up(stream: io.StringIO) -> None:
    second = io.StringIO()
    log = get_logger("samovar.test")
    configure_logging(Logging(level="error"), second)
    log.error("once")
    log.info("never")
    assert stream.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["once"]


@pytest.mark.parametrize(
    ("chosen", "terminal", "readable"),
    [("auto", True, True), ("auto", False, False), ("json", True, False), ("console", False, True)],
)
def test_the_format_follows_the_setting_then_the_stream(chosen: str, terminal: bool, readable: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    configure_logging(Logging(format=chosen), stream)
    try:
        get_logger("samovar.test").info("hello", nothing=None)
    finally:
        reset_logging()
    assert stream.getvalue().startswith("{") == (not readable)
    assert ("\x1b[" in stream.getvalue()) == (readable and terminal)


def test_the_request_line_has_exactly_the_promised_fields(stream: io.StringIO) -> None:
    log_request(RequestLine(request_id="r1", route="/v1/chat/completions", status=200, ttft_ms=1.23456))
    (line,) = lines(stream)
    assert set(line) == {item.name for item in fields(RequestLine)} | {
        "event",
        "level",
        "logger",
        "timestamp",
    }
    assert set(line) >= {
        *(
            "request_id",
            "route",
            "status",
            "model",
            "stream",
            "finish_reason",
            "prompt_tokens",
            "cached_tokens",
        ),
        *("completion_tokens", "queue_ms", "prefill_ms", "ttft_ms", "duration_ms", "tokens_per_s"),
        *("client_lost", "error_code"),
    }
    assert (line["event"], line["level"], line["status"], line["ttft_ms"]) == ("request", "info", 200, 1.235)


@pytest.mark.parametrize(("status", "level"), [(499, "info"), (429, "info"), (500, "error"), (503, "error")])
def test_only_the_fault_of_the_server_is_logged_as_an_error(
    stream: io.StringIO, status: int, level: str
) -> None:
    log_request(RequestLine(request_id="r1", route="/x", status=status, error_code="e"))
    assert lines(stream)[0]["level"] == level

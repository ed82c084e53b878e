"""Logging: one pipeline for our own structlog lines and for every library's stdlib lines.

Lines go to stderr, coloured text for a person at a terminal, one JSON object a line for everything
else. Time stamps are UTC, ISO 8601. Tracebacks never carry local variables, since those may hold
prompts. Writing is a plain blocking write of one short line under a lock, from whatever thread logs: a
reader of stderr that stalls would stall the loop too, which is the price for losing no line; nothing
is logged per token.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TextIO, cast

import orjson
import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.tracebacks import ExceptionDictTransformer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, MutableMapping

    from structlog.typing import EventDict, FilteringBoundLogger, Processor

    from .config import Logging

# Libraries that talk about their own work at "info"; what they do for a request is in our own line.
_CHATTY = ("aiohttp.access", "asyncio", "filelock", "httpcore", "httpx", "huggingface_hub", "urllib3")
# Libraries that put a handler of their own on their root logger when they are imported.
_SELF_HANDLED = ("transformers", "huggingface_hub")
_TRACEBACK_FRAMES = 30


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that a second set-up can find and replace the first one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """The one line about a request that has ended. Holds figures and names, never text or token ids.

    Times are milliseconds: ``queue_ms`` until the prefill began, ``prefill_ms`` from there to its end,
    ``ttft_ms`` and ``duration_ms`` from arrival. None where the request never got that far.
    ``client_lost`` says that the client went away first (status 499).
    """

    request_id: str
    route: str
    status: int
    model: str | None = None
    stream: bool = False
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tier: str | None = None
    restore_ms: float | None = None
    miss_reason: str | None = None
    diverged_at: int | None = None
    completion_tokens: int | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    tokens_per_s: float | None = None
    client_lost: bool = False
    error_code: str | None = None


def get_logger(name: str) -> FilteringBoundLogger:
    """Return a logger; follows ``configure_logging`` even when taken before it. Any thread."""
    return cast("FilteringBoundLogger", structlog.get_logger(name))


def log_request(line: RequestLine) -> None:
    """Write the canonical line (``event`` is "request"): an error for 5xx, else info. Any thread."""
    logger = get_logger("samovar.request")
    write = logger.error if line.status >= 500 else logger.info  # noqa: PLR2004 - the HTTP class
    write("request", **{item.name: _rounded(getattr(line, item.name)) for item in fields(line)})


def configure_logging(settings: Logging, stream: TextIO | None = None) -> None:
    """Send all logging to ``stream`` (stderr by default) as ``settings`` say; replaces an earlier set-up.

    Call it in the main thread before threads start.
    """
    target = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    readable = settings.format == "console" or (settings.format == "auto" and target.isatty())
    handler = _Handler(target)
    handler.setFormatter(_formatter(_console(target) if readable else _json()))
    _replace_handler(handler, level)
    structlog.configure(
        processors=[*_common(), ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING) if level > logging.DEBUG else level)
    logging.captureWarnings(capture=True)
    adopt_library_loggers()


def change_logging(settings: Logging) -> None:
    """Log as ``settings`` say from now on, to the same stream; nothing where logging was never set up.

    Any thread, while others log: no line is lost, one may be written twice.
    """
    ours = next((one for one in logging.getLogger().handlers if isinstance(one, _Handler)), None)
    if ours is not None:
        configure_logging(settings, ours.stream)


@contextmanager
def request_context(request_id: str) -> Generator[None]:
    """Put the request's id on every line that this task writes meanwhile, whoever's line it is."""
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        yield


def adopt_library_loggers() -> None:
    """Route libraries that handle their own logging through ours; call again once they were imported."""
    for name in _SELF_HANDLED:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def reset_logging() -> None:
    """Undo ``configure_logging``."""
    _replace_handler(None, logging.WARNING)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET)


def _replace_handler(handler: logging.Handler | None, level: int) -> None:
    root = logging.getLogger()
    replaced = [one for one in root.handlers if isinstance(one, _Handler)]
    if handler is not None:
        root.addHandler(handler)
    for old in replaced:
        root.removeHandler(old)
    root.setLevel(level)


def _common() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _formatter(last: list[Processor]) -> ProcessorFormatter:
    return ProcessorFormatter(
        foreign_pre_chain=[*_common(), structlog.stdlib.ExtraAdder()],
        processors=[ProcessorFormatter.remove_processors_meta, *last],
    )


def _json() -> list[Processor]:
    transformer = ExceptionDictTransformer(show_locals=False, max_frames=_TRACEBACK_FRAMES)
    return [
        structlog.processors.ExceptionRenderer(transformer),
        structlog.processors.JSONRenderer(serializer=_dump),
    ]


def _console(stream: TextIO) -> list[Processor]:
    colors = stream.isatty() and not os.environ.get("NO_COLOR")
    return [
        _without_nones,
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
    ]


def _without_nones(_logger: object, _method: str, event: EventDict) -> EventDict:
    return {name: value for name, value in event.items() if value is not None}


def _dump(event: MutableMapping[str, Any], default: Callable[[Any], Any]) -> str:
    """Write JSON whatever the values are: a log line must never raise."""
    try:
        return orjson.dumps(event, default=default, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # integers beyond 64 bits, lone surrogates, cycles of default
        return json.dumps({str(name): repr(value) for name, value in event.items()})


def _rounded(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value

"""``samovar chat``: from arguments to a conversation and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from .chat_options import KEY_VARIABLE, words_for_server
from .complaints import FAILED, OK, complain, report
from .ending import end_process
from .options import load_config

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Generator

    from ..config import Loaded

GAVE_UP = 70


def run(args: Namespace) -> int:
    """Talk to a server, or to a model in this process, which this function then ends itself."""
    with _leaving_when_told():
        return _talk_to_server(args) if args.url is not None else _run_here(args)


def _run_here(args: Namespace) -> NoReturn:
    from .chat.words import split_words  # noqa: PLC0415 - loads the engine's package

    args.model, prompt = split_words(args.words)
    loaded = load_config(args)
    end_process(_guarded(args, loaded, prompt))


def _talk_to_server(args: Namespace) -> int:
    from .chat.remote import RemoteSpeaker  # noqa: PLC0415 - loads aiohttp
    from .chat.session import Session  # noqa: PLC0415

    model, prompt = words_for_server(args.words, word_first=args.word_first)
    speaker = RemoteSpeaker(args.url, args.api_key or os.environ.get(KEY_VARIABLE), model)
    Session(args, prompt).hold(speaker)
    return OK


def _guarded(args: Namespace, loaded: Loaded, prompt: str | None) -> int:
    """Run a conversation with a model in this process; return the exit code whatever happens."""
    from .chat.speech import GaveUp  # noqa: PLC0415 - see run

    try:
        return _talk_here(args, loaded, prompt)
    except KeyboardInterrupt:
        complain("interrupted")
    except (SystemExit, BrokenPipeError):
        pass  # told to leave, or whoever read the reply has left
    except GaveUp as error:
        complain(str(error))
        return GAVE_UP
    except Exception as error:  # noqa: BLE001 - raised again unless it is of a kind users can mend
        return report(error)
    return FAILED


def _talk_here(args: Namespace, loaded: Loaded, prompt: str | None) -> int:
    from ...storage.fs import OsFilesystem  # noqa: PLC0415 - see run
    from ..engine.errors import ModelError  # noqa: PLC0415
    from ..serve import mlx_engine, start_error  # noqa: PLC0415 - loads MLX and aiohttp
    from .chat.local import TreeSpeaker  # noqa: PLC0415
    from .chat.session import Session  # noqa: PLC0415

    session = Session(args, prompt)
    _quieten(loaded)
    try:
        engine = mlx_engine(loaded.config)
    except ModelError as error:
        raise start_error(error) from error
    session.hold(TreeSpeaker(loaded.config, engine, OsFilesystem(), session.remark))
    return OK


def _quieten(loaded: Loaded) -> None:
    """Keep the log off the conversation: errors only, unless the configuration names a level."""
    from ..logs import configure_logging  # noqa: PLC0415 - see run

    for warning in loaded.warnings:
        sys.stderr.write(f"samovar: warning: {warning}\n")
    settings = loaded.config.logging
    given = loaded.origin("logging.level").kind != "default"
    configure_logging(settings if given else replace(settings, level="error"))


@contextlib.contextmanager
def _leaving_when_told() -> Generator[None]:
    """Let SIGTERM and SIGHUP leave the block in order, so that the cache is flushed."""
    before = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(FAILED)

"""Serve the scripted engine as a process of its own: ``python -m tests.kit.serve --set server.port=0``.

Everything but the engine is the real thing: tree, HTTP, signals, exit codes. ``--step-ms`` paces the engine,
``--open-error`` keeps it from opening, ``--tokenizer`` lets it read prompts as the model in a folder does.
Logs go to stderr as JSON; the "ready" line carries the address.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from samovar.runtime.cli.ending import end_process
from samovar.runtime.config import Config, ConfigError, Loaded, load
from samovar.runtime.engine.errors import ModelUnreadable
from samovar.runtime.logs import configure_logging
from samovar.runtime.requestlog import LineLog
from samovar.runtime.serve import StartError, run
from samovar.storage.fs import OsFilesystem

from tests.kit.engine import FakeBackend, FakeEngine
from tests.kit.killer import KillingFilesystem, KillPoint

if TYPE_CHECKING:
    from samovar.runtime.app import Engine
    from samovar.runtime.engine.port import ModelInfo
    from samovar.runtime.engine.text.codec import HfTextCodec

CONTEXT = 8192


@dataclass
class ReadingEngine(FakeEngine):
    """Scripted replies to prompts that a real tokenizer reads."""

    context_length: int = CONTEXT
    reader: HfTextCodec | None = None

    def codec(self) -> HfTextCodec:  # type: ignore[override]
        assert self.reader is not None
        return self.reader


@dataclass
class SlowEngine(FakeEngine):
    """Scripted replies from a model that takes its time to open."""

    open_s: float = 0.0

    def backend(self) -> FakeBackend:
        return SlowBackend(self, self.open_s)


class SlowBackend(FakeBackend):
    def __init__(self, engine: FakeEngine, open_s: float) -> None:
        super().__init__(engine)
        self._open_s = open_s

    def open(self) -> ModelInfo:
        time.sleep(self._open_s)
        return super().open()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", dest="assignments", action="append", default=[])
    parser.add_argument("--config", dest="files", action="append", type=Path, default=[])
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--prefill-tokens", type=int, default=1_000_000, help="how many a step prefills")
    parser.add_argument("--open-s", type=float, default=0.0, help="how long opening the model takes")
    parser.add_argument("--open-error")
    parser.add_argument("--kill", help="die of SIGKILL at a file operation: kind:number:before|torn|after")
    parser.add_argument("--family", help="serve a tiny random model of this family instead of the script")
    parser.add_argument("--tokenizer", type=Path, help="the folder of a model whose tokenizer to use")
    args = parser.parse_args()

    def read() -> Loaded:
        return load(args.files, {}, args.assignments, [])

    config = read().config
    configure_logging(config.logging)
    engine = _engine(args, config)
    fs = OsFilesystem() if args.kill is None else KillingFilesystem(KillPoint.parse(args.kill))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(config, engine, LineLog(), fs, read))


def _engine(args: argparse.Namespace, config: Config) -> Engine:
    if args.family:
        from tests.kit.tiny import TinyEngine  # noqa: PLC0415 - loads MLX

        least = config.cache.ram.min_tokens
        return TinyEngine(args.family).with_options(publish_min_tokens=least)
    if args.tokenizer:
        return ReadingEngine(step_s=args.step_ms / 1000.0, reader=_reader(args.tokenizer))
    error = ModelUnreadable(args.open_error) if args.open_error else None
    return SlowEngine(
        step_s=args.step_ms / 1000.0,
        open_error=error,
        prefill_tokens=args.prefill_tokens,
        open_s=args.open_s,
    )


def _reader(folder: Path) -> HfTextCodec:
    from mlx_lm.utils import load_tokenizer  # noqa: PLC0415 - loads MLX and transformers
    from samovar.runtime.engine.text.codec import HfTextCodec  # noqa: PLC0415

    return HfTextCodec(load_tokenizer(folder), context_length=CONTEXT)


if __name__ == "__main__":
    try:
        end_process(main())
    except (ConfigError, StartError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)

"""A server for the kill tests: ``python -m tests.crash.kill_serve --go FIFO --set server.port=0 …``.

The scripted engine, but what it answers is a digest of the tokens that it was really given: those of the
state that it was lent, then those of the prompt. So a wrong state shows in the text. Once everything is
imported it prints a line and waits for an order in the FIFO: where to die, if anywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from samovar.runtime.config import load
from samovar.runtime.logs import configure_logging
from samovar.runtime.requestlog import LineLog
from samovar.runtime.serve import StartError, run
from samovar.storage.fs import OsFilesystem
from samovar.storage.tokens import TokenIds

from tests.kit.engine import FakeCodec, FakeEngine
from tests.kit.killer import KillingFilesystem, KillPoint
from tests.kit.states import FakeState

if TYPE_CHECKING:
    from samovar.runtime.engine.port import RowRequest
    from samovar.runtime.engine.prompt import Constraint, Prompt, RenderedPrompt


@dataclass
class ArmedPoint(KillPoint):
    """A kill point that counts operations only once it is armed."""

    armed: bool = False

    def reached(self, kind: str) -> bool:
        return self.armed and super().reached(kind)


class ArmingCodec(FakeCodec):
    """Arms a point with the first chat: what is counted before is the start."""

    def __init__(self, point: ArmedPoint | None) -> None:
        self._point = point

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        if self._point is not None:
            self._point.armed = True
        return super().render(prompt, constraint)


@dataclass
class WitnessEngine(FakeEngine):
    point: ArmedPoint | None = field(default=None, kw_only=True)

    def codec(self) -> ArmingCodec:
        return ArmingCodec(self.point)

    def reply(self, row: RowRequest, n: int) -> str | None:
        return f"{digest_of(given_to(row))}.{n} " if n < row.max_tokens else None


def given_to(row: RowRequest) -> TokenIds:
    """Return the tokens that a row's state stands for, as its bytes say."""
    if row.prefix is None:
        return TokenIds.of(row.tokens)
    state = row.prefix.checkpoint
    assert isinstance(state, FakeState)
    lent = TokenIds.from_bytes(bytes(state.data[0]))[: row.prefix.length]
    return TokenIds.of([*lent, *row.tokens[row.prefix.length :]])


def digest_of(tokens: TokenIds) -> str:
    return hashlib.blake2b(tokens.to_bytes(), digest_size=8).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", dest="assignments", action="append", default=[])
    parser.add_argument("--token-bytes", type=int, default=16)
    parser.add_argument("--untrimmable", action="store_true")
    parser.add_argument("--go", type=Path, required=True)
    args = parser.parse_args()
    config = load([], {}, args.assignments, []).config
    configure_logging(config.logging)
    sys.stderr.write(json.dumps({"event": "loaded"}) + "\n")
    point, fs = _ordered(args.go)
    engine = WitnessEngine(token_bytes=args.token_bytes, trims=not args.untrimmable, point=point)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(config, engine, LineLog(), fs))


def _ordered(fifo: Path) -> tuple[ArmedPoint | None, OsFilesystem | KillingFilesystem]:
    """Wait for the order: ``start/kind:number:when``, ``serving/kind:number:when`` or nothing."""
    order = fifo.read_text()
    if not order:
        return None, OsFilesystem()
    phase, place = order.split("/")
    plain = KillPoint.parse(place)
    point = ArmedPoint(plain.kind, plain.number, plain.when, armed=phase == "start")
    return point, KillingFilesystem(point)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)

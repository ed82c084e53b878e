"""Runs chaos: ``python -m tests.chaos.run --seeds 1000 [--first 0]``.

One seed is one run, the same every time: clients, crashes and the order of the threads follow from it. A seed
that fails is printed with what was drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import traceback
from random import Random
from typing import Any

from tests.cache.turns import TurnLoop, Turns

from .life import Life


class ChaosFailed(AssertionError):
    """A run went wrong."""


def run(seed: int) -> Life:
    """Live one run and return it. Raises ChaosFailed, which names the seed."""
    chance = Random(seed)
    turns = Turns(Random(chance.random()))
    with turns.installed(), asyncio.Runner(loop_factory=lambda: TurnLoop(turns)) as runner:
        loop: Any = runner.get_loop()
        lives: list[Life] = []
        try:
            runner.run(_lived(chance, turns, lives))
            gc.collect(1)
            assert not loop.errors, f"errors nobody handled: {loop.errors}"
        except BaseException as error:
            turns.abandon()
            drawn = "\n  ".join(lives[0].log if lives else [])
            raise ChaosFailed(f"seed {seed}\n  {drawn}\n{error!r}") from error
    return lives[0]


async def _lived(chance: Random, turns: Turns, lives: list[Life]) -> None:
    lives.append(Life(chance, turns))
    await lives[0].live()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(arguments)
    failed: list[int] = []
    begun_s = time.perf_counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            run(seed)
        except ChaosFailed:
            failed.append(seed)
            traceback.print_exc()
    elapsed_s = time.perf_counter() - begun_s
    print(f"{options.seeds} seeds in {elapsed_s:.1f} s; failed: {failed or 'none'}")  # noqa: T201
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

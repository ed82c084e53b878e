"""What the product takes from outside, made repeatable: the clocks and the chance that are no parameters.

Modules of samovar are looked up when the block is entered, so whatever they import later reads the machine's
clocks. The kernel's clocks stay: it takes its time from the loop, and only measures with the others.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ELAPSED = {"monotonic": time.monotonic, "perf_counter": time.perf_counter}


@contextlib.contextmanager
def replaced(module: Any, **attributes: Any) -> Iterator[None]:
    """Set attributes of a module for the time being."""
    kept = {name: getattr(module, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


@contextlib.contextmanager
def repeatable(elapsed: Callable[[], float], wall: Callable[[], float], seed: int) -> Iterator[None]:
    """Let everything but the kernel read these clocks, and draw from generators that ``seed`` seeds.

    ``elapsed`` and ``wall`` are called on any thread.
    """
    clocks = SimpleNamespace(time=wall, monotonic=elapsed, perf_counter=elapsed, sleep=time.sleep)
    seeds = random.Random(seed)
    chance = SimpleNamespace(Random=lambda: random.Random(seeds.random()))
    with contextlib.ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith("samovar.") and not name.startswith("samovar.runtime.kernel"):
                stack.enter_context(replaced(module, **_taken_by(module, clocks, chance, elapsed)))
        yield


def _taken_by(module: Any, clocks: Any, chance: Any, elapsed: Any) -> dict[str, Any]:
    held = vars(module)
    found: dict[str, Any] = {name: elapsed for name, real in _ELAPSED.items() if held.get(name) is real}
    if held.get("time") is time:
        found["time"] = clocks
    if held.get("random") is random:
        found["random"] = chance
    return found

"""Lookups in the prefix index at many long entries: shared as agents share prefixes, random, and very deep.

- shared: 20 system prompts of 4,000 tokens, conversations that branch and branch again. Asked for with
  prompts that extend a stored one, leave one at a random place, or come again as they are.
- random: no two entries have a token in common after the first few; the same three kinds of prompt.
- deep: conversations of 400 turns of a model whose state cannot be trimmed, so that every turn is kept.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from samovar.storage.index import PrefixIndex
from samovar.storage.tokens import TokenIds

from .storage_figures import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 150_000
SYSTEM_PROMPTS, SYSTEM_TOKENS = 20, 4_000
BRANCHES = 5
DEEP_TURNS = 400
NEW_TOKENS = 200
GOAL_MS = 1.0
REPEATS = 3

Ids = np.ndarray


@dataclass(frozen=True, slots=True)
class Held:
    """What stands in the index."""

    namespace: str
    tokens: TokenIds
    trimmable: bool
    reusable_from: int


def measure_lookups(entries: int, tokens: int, lookups: int) -> list[Figure]:
    """Return the times of single lookups, in milliseconds, for each kind of contents."""
    kinds: tuple[tuple[str, Callable[[int, int, np.random.Generator], list[Ids]], bool], ...] = (
        ("shared", _shared, True),
        ("random", _random, True),
        ("deep", _deep, False),
    )
    figures: list[Figure] = []
    for name, make, trimmable in kinds:
        chance = np.random.default_rng(11)
        stored = make(entries, tokens, chance)
        index = PrefixIndex(Held("", TokenIds(ids), trimmable, 0) for ids in stored)
        prompts = [_prompt(stored, place, chance) for place in range(lookups)]
        figures += _figures(name, _time(index, prompts), len(index))
    return figures


def _random(entries: int, tokens: int, chance: np.random.Generator) -> list[Ids]:
    return [_fresh(tokens, chance) for _ in range(entries)]


def _shared(entries: int, tokens: int, chance: np.random.Generator) -> list[Ids]:
    """Branch each entry off one of the last few that have the same system prompt, anywhere after it."""
    roots = [_fresh(min(SYSTEM_TOKENS, tokens // 2), chance) for _ in range(SYSTEM_PROMPTS)]
    families = [[np.concatenate((root, _fresh(tokens - len(root), chance)))] for root in roots]
    for number in range(entries - len(families)):
        family = families[number % len(families)]
        parent = family[-1 - int(chance.integers(min(BRANCHES, len(family))))]
        at = int(chance.integers(len(roots[0]), tokens))
        family.append(np.concatenate((parent[:at], _fresh(tokens - at, chance))))
    return [ids for family in families for ids in family]


def _deep(entries: int, tokens: int, chance: np.random.Generator) -> list[Ids]:
    turns = min(DEEP_TURNS, entries)
    found: list[Ids] = []
    for _ in range(entries // turns):
        whole = _fresh(tokens, chance)
        found += [whole[: tokens * turn // turns].copy() for turn in range(1, turns + 1)]
    return found


def _fresh(count: int, chance: np.random.Generator) -> Ids:
    return chance.integers(0, VOCABULARY, count, np.uint32)


def _prompt(stored: list[Ids], place: int, chance: np.random.Generator) -> TokenIds:
    ids = stored[int(chance.integers(len(stored)))]
    if place % 3 == 0:
        return TokenIds(ids.copy())
    keep = len(ids) if place % 3 == 1 else int(chance.integers(len(ids)))
    return TokenIds(np.concatenate((ids[:keep], _fresh(NEW_TOKENS, chance))))


def _time(index: PrefixIndex[Held], prompts: list[TokenIds]) -> list[list[float]]:
    """Return, for each prompt, the milliseconds of each time it was asked for."""
    taken: list[list[float]] = [[] for _ in prompts]
    gc.collect()
    gc.disable()
    for _ in range(REPEATS):
        for place, prompt in enumerate(prompts):
            begun = time.perf_counter()
            index.longest(prompt, "", len(prompt) - 1)
            taken[place].append((time.perf_counter() - begun) * 1e3)
    gc.enable()
    return taken


def _figures(name: str, taken: list[list[float]], entries: int) -> list[Figure]:
    each = sorted(ms for times in taken for ms in times)
    facts: dict[str, object] = {
        "p99": round(each[len(each) * 99 // 100], 4),
        "slowest of all": round(each[-1], 4),
        "entries": entries,
        "lookups": len(each),
    }
    worst = max(min(times) for times in taken)  # what preempts us once does not come back thrice
    return [
        Figure(f"index lookup, {name}, median", statistics.median(each), "ms", GOAL_MS, "less", facts),
        Figure(f"index lookup, {name}, worst prompt (best of {REPEATS})", worst, "ms", GOAL_MS),
    ]

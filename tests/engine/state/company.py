"""Rows that decode in company and alone: the same caches, once in one batch and once each by itself."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache, make_prompt_cache
from samovar.runtime.engine.state.caches import batch_of, quantised, row_of

from tests.engine.state.states import model_of, token_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GROUP = 32
STEPS = 64


class Scheme(NamedTuple):
    """Bits of attention layers that can be quantised, None for plain ones."""

    family: str
    bits: int | None

    @property
    def model(self) -> Any:
        return model_of(self.family)

    def caches(self) -> list[Any]:
        """Return empty caches of one row."""
        return [self._under(cache) for cache in make_prompt_cache(self.model)]

    def _under(self, cache: Any) -> Any:
        if type(cache) is CacheList:
            return CacheList(*(self._under(each) for each in cache.caches))
        if self.bits is None or type(cache) not in (KVCache, RotatingKVCache):
            return cache
        return quantised(cache, self.bits, GROUP)


def prompt(length: int, line: int = 0) -> list[int]:
    return [token_at(place + 5 * line + length) for place in range(length)]


class Prefilled(NamedTuple):
    caches: list[Any]
    logits: mx.array


def prefill(scheme: Scheme, tokens: Sequence[int]) -> Prefilled:
    caches = scheme.caches()
    logits = scheme.model(mx.array([list(tokens)]), cache=caches)[:, -1]
    mx.eval(logits, [cache.state for cache in caches])
    return Prefilled(caches, logits)


class Told(NamedTuple):
    """What came out of a row: the greedy tokens, and the logits that each was drawn from."""

    tokens: list[int]
    logits: list[mx.array]


@functools.cache
def alone(scheme: Scheme, length: int, line: int, steps: int = STEPS) -> Told:
    """Return a row's first tokens, decoded on mlx-lm's caches (or our solo ones) with no batch."""
    caches, logits = prefill(scheme, prompt(length, line))
    told = Told([], [])
    for _ in range(steps):
        token = mx.argmax(logits, -1)
        mx.eval(token, logits)
        told.tokens.append(int(token.item()))
        told.logits.append(logits[0])
        logits = scheme.model(token[:, None], cache=caches)[:, -1]
    return told


@dataclass
class Company:
    """A batch under the test's control: rows by name, in the order of the batch."""

    scheme: Scheme
    rows: list[str] = field(default_factory=list)
    told: dict[str, Told] = field(default_factory=dict)
    caches: list[Any] = field(default_factory=list)
    logits: mx.array | None = None

    def join(self, **rows: Prefilled) -> None:
        """Let rows in, all at once."""
        layers = zip(*(row.caches for row in rows.values()), strict=True)
        caches = [batch_of(list(layer)) for layer in layers]
        logits = mx.concatenate([row.logits for row in rows.values()])
        if self.logits is None:
            self.caches, self.logits = caches, logits
        else:
            for mine, theirs in zip(self.caches, caches, strict=True):
                mine.extend(theirs)
            self.logits = mx.concatenate([self.logits, logits])
        self.rows += rows
        for name in rows:
            self.told.setdefault(name, Told([], []))

    def leave(self, *names: str) -> None:
        keep = [line for line, name in enumerate(self.rows) if name not in names]
        assert self.logits is not None
        if not keep:
            self.rows, self.caches, self.logits = [], [], None
            return
        for cache in self.caches:
            cache.filter(keep)
        self.rows = [self.rows[line] for line in keep]
        self.logits = self.logits[mx.array(keep)]

    def row(self, name: str) -> Prefilled:
        """Return a row as it could leave now."""
        line = self.rows.index(name)
        caches = [row_of(cache, line, alone=len(self.rows) == 1) for cache in self.caches]
        assert self.logits is not None
        return Prefilled(caches, self.logits[line : line + 1])

    def decode(self, steps: int) -> None:
        for _ in range(steps):
            assert self.logits is not None
            tokens = mx.argmax(self.logits, -1)
            mx.eval(tokens, self.logits, [cache.state for cache in self.caches])
            for line, (name, token) in enumerate(zip(self.rows, tokens.tolist(), strict=True)):
                self.told[name].tokens.append(token)
                self.told[name].logits.append(self.logits[line])
            self.logits = self.scheme.model(tokens[:, None], cache=self.caches)[:, -1]

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.decode(1)

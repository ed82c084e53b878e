"""Hundreds of mixed requests leave nothing behind (REQUIREMENTS, long runs)."""

from __future__ import annotations

import gc
import random
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from samovar.runtime.engine.batching.pool import KEPT_SHARE, LONG_PREFILL_TOKENS, BufferPool
from samovar.runtime.engine.checkpoint import Prefix
from samovar.runtime.engine.port import Cancelled, Failed, Finished, Published, RowRequest, Sampling

from tests.engine.batching.test_backend import opened
from tests.kit.models import VOCAB, tiny

if TYPE_CHECKING:
    import pytest
    from samovar.runtime.engine.batching.backend import MlxBackend
    from samovar.runtime.engine.port import RowEvent

REQUESTS = 200
SETTINGS = (
    Sampling(),
    Sampling(temperature=1.1, seed=3),
    Sampling(temperature=0.9, top_p=0.8, top_k=20),
    Sampling(repetition_penalty=1.2, frequency_penalty=0.5, logit_bias={3: 1.0}),
)


class _Clients:
    """Keeps mixed requests in the lane: some cancelled, some resumed, some going on from others' state."""

    def __init__(self, backend: MlxBackend) -> None:
        self._backend = backend
        self._rng = random.Random(5)
        self._states: deque[Prefix] = deque(maxlen=2)
        self._asked = 0
        self._running = 0
        self.ends: Counter[str] = Counter()

    def serve(self, requests: int) -> None:
        last = self._asked + requests
        while self._asked < last or self._backend.busy:
            while self._running < 10 and self._asked < last:
                self._backend.insert(self._next())
                self._running += 1
            if self._rng.random() < 0.05:
                self._backend.cancel(f"r{self._asked - self._rng.randrange(10)}")
            for event in self._backend.step():
                self._heard(event)
        self._states.clear()

    def _heard(self, event: RowEvent) -> None:
        if isinstance(event, Published):
            self._states.append(Prefix(event.checkpoint, len(event.checkpoint.spec.tokens)))
        elif isinstance(event, Finished | Cancelled | Failed):
            self.ends[type(event).__name__] += 1
            self._running -= 1

    def _next(self) -> RowRequest:
        rng = self._rng
        self._asked += 1
        tokens = [rng.randrange(VOCAB) for _ in range(rng.choice((1, 5, 20, 50)))]
        options: dict[str, Any] = {
            "sampling": rng.choice(SETTINGS),
            "publish": rng.random() < 0.5,
            "stop": ("ab",) if rng.random() < 0.3 else (),
            "top_logprobs": 3 if rng.random() < 0.3 else None,
        }
        if rng.random() < 0.1:
            tokens[0] = VOCAB  # refused
        elif self._states and self._states[-1].length < 80 and rng.random() < 0.5:
            options["prefix"] = self._states[-1]
            tokens = [*self._states[-1].checkpoint.spec.tokens.tolist(), *tokens]
        elif rng.random() < 0.2:
            options["emitted"] = tuple(rng.randrange(VOCAB) for _ in range(3))
        return RowRequest(f"r{self._asked}", tokens, rng.choice((1, 3, 6)), **options)


def held() -> tuple[int, int]:
    gc.collect()
    return mx.get_active_memory(), len(gc.get_objects())


def test_memory_and_objects_are_flat_over_hundreds_of_requests() -> None:
    backend = opened(tiny("llama"), batch=8, prefill_chunk=32, publish_min_tokens=8)
    clients = _Clients(backend)
    clients.serve(REQUESTS)
    bytes_before, objects_before = held()
    clients.serve(REQUESTS // 2)
    bytes_after, objects_after = held()
    backend.close()
    assert clients.ends.total() == REQUESTS * 3 // 2
    assert min(clients.ends[kind] for kind in ("Finished", "Cancelled", "Failed")) > 3
    assert bytes_after - bytes_before < 4096
    assert objects_after - objects_before < 50


def test_a_pool_beyond_its_share_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: emptied.append("emptied"))
    cached = 1000
    monkeypatch.setattr(mx, "get_cache_memory", lambda: cached)
    pool = BufferPool(1000 * KEPT_SHARE)
    pool.stepped()
    assert emptied == []
    cached += 1
    pool.stepped()
    assert emptied == ["emptied"]
    BufferPool(0).stepped()
    assert emptied == ["emptied"]


def test_long_prefills_empty_the_pool_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: emptied.append("emptied"))
    pool = BufferPool(0)
    for _ in range(LONG_PREFILL_TOKENS // 512 * 3):
        pool.prefilled(512)
    assert emptied == ["emptied"] * 3

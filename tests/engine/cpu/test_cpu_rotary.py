"""Rotary embeddings of decode steps: MLX's numbers, and the angles computed once for all layers."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from samovar.runtime.engine.batching.batch import forward
from samovar.runtime.engine.cpu import rotary
from samovar.runtime.engine.cpu.rotary import install, keep_angles_of, rope
from samovar.runtime.engine.state.caches import batch_of

from tests.kit.models import build

import mlx.core as mx  # isort: skip
from mlx_lm.models.cache import make_prompt_cache  # isort: skip

mlx_rope = rotary._mlx_rope


def normal(*shape: int, seed: int = 1) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def options(**changed: Any) -> dict[str, Any]:
    return {"traditional": False, "base": 10_000.0, "scale": 1.0} | changed


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what is left to MLX."""
    seen: list[tuple[int, ...]] = []

    def note(a: mx.array, dims: int, **given: Any) -> mx.array:
        seen.append(tuple(a.shape))
        return mlx_rope(a, dims, **given)

    monkeypatch.setattr(rotary, "_mlx_rope", note)
    return seen


@pytest.mark.parametrize("offsets", [[0], [7], [0, 3, 100], [5, 5, 131_071, 9]])
@pytest.mark.parametrize(
    ("dims", "changed"),
    [
        (64, {}),
        (32, {}),
        (64, {"scale": 0.25}),
        (64, {"base": 500_000.0}),
        (64, {"base": None, "freqs": mx.arange(1, 33).astype(mx.float32) * 3}),
    ],
)
def test_it_turns_as_mlx_does(
    offsets: list[int], dims: int, changed: dict[str, Any], left: list[tuple[int, ...]]
) -> None:
    a, offset = normal(len(offsets), 3, 1, 64), mx.array(offsets)
    found = rope(a, dims, offset=offset, **options(**changed))
    assert left == []
    whole = mlx_rope(a, dims, offset=offset, **options(**changed))
    # A position of 131,071 has float32 angles that are good to a hundredth of a radian at best.
    tolerance = 2e-2 if max(offsets) > 10_000 else 2e-4
    np.testing.assert_allclose(np.array(found), np.array(whole), atol=tolerance)


@pytest.mark.parametrize(
    ("a", "given"),
    [
        (normal(2, 3, 2, 64), {"offset": mx.array([1, 2])}),
        (normal(2, 3, 1, 64).astype(mx.bfloat16), {"offset": mx.array([1, 2])}),
        (normal(2, 3, 1, 64), {"offset": 5}),
        (normal(2, 3, 1, 64), {"offset": mx.array(5)}),
        (normal(2, 3, 1, 64), {"offset": mx.array([1, 2]), "traditional": True}),
        (normal(2, 1, 64), {"offset": mx.array([1, 2])}),
    ],
)
def test_other_calls_are_mlxs_own(a: mx.array, given: dict[str, Any], left: list[tuple[int, ...]]) -> None:
    found = rope(a, 64, **options(**given))
    assert left == [tuple(a.shape)]
    assert mx.array_equal(found, mlx_rope(a, 64, **options(**given)))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The offsets whose angles were computed, each time."""
    seen: list[list[int]] = []
    own = rotary._computed

    def note(offset: mx.array, *rest: Any) -> Any:
        seen.append(cast("list[int]", offset.tolist()))
        return own(offset, *rest)

    monkeypatch.setattr(rotary, "_computed", note)
    return seen


def test_angles_are_computed_once_for_all_layers_of_each_kind(computed: list[list[int]]) -> None:
    first, second = mx.array([1, 2]), mx.array([2, 3])
    for offset in (first, second, first):
        keep_angles_of(offset)
        for seed in range(6):
            a = normal(2, 3, 1, 64, seed=seed)
            for base in (10_000.0, 1_000_000.0):
                found = rope(a, 64, offset=offset, **options(base=base))
                whole = mlx_rope(a, 64, offset=offset, **options(base=base))
                np.testing.assert_allclose(np.array(found), np.array(whole), atol=1e-4)
    assert computed == [each for pair in ([1, 2], [2, 3], [1, 2]) for each in (pair, pair)]


def test_nothing_is_kept_of_offsets_that_may_change_in_place(computed: list[list[int]]) -> None:
    keep_angles_of(None)
    a, offset = normal(2, 3, 1, 64), mx.array([1, 2])
    before = rope(a, 64, offset=offset, **options())
    same = offset
    offset += 1
    assert offset is same
    after = rope(a, 64, offset=offset, **options())
    assert computed == [[1, 2], [2, 3]]
    assert not mx.allclose(before, after)


def test_a_batch_computes_its_angles_once_a_step(computed: list[list[int]]) -> None:
    install()
    model, rows = build("llama").model, []
    for tokens in ([1, 2, 3, 4], [5, 6]):
        rows.append(make_prompt_cache(model))
        model(mx.array([tokens]), cache=rows[-1])
    batch = [batch_of(list(layer)) for layer in zip(*rows, strict=True)]
    assert len(batch) > 1
    computed.clear()
    for step in range(3):
        mx.eval(forward(model, mx.array([7, 8]), batch))
        assert computed == [[4 + n, 2 + n] for n in range(step + 1)]


def test_it_is_installed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.fast, "rope", mlx_rope)
    install()
    install()
    assert mx.fast.rope is rope

"""Rotary embeddings of decode steps in float32 on a CPU: the angles once for all layers.

MLX computes sines and cosines anew in each call, two calls a layer, each of them a dozen operations: 8 ms of
the 65 of a decode step of the default model, at any number of rows. All layers of a step share one array of
offsets (``share_offsets``), whose angles are kept: 2 ms.

``install`` replaces ``mx.fast.rope``, which mlx-lm calls. Shapes alone decide which way a call takes.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import mlx.core as mx

from ..device import computes_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

Angles: TypeAlias = tuple[mx.array, mx.array]

_AXES: Final = 4
_mlx_rope = mx.fast.rope


def install() -> None:
    """Use these computations in this process if its device is the CPU; else, and once done, do nothing."""
    if computes_on_cpu():
        mx.fast.rope = rope


def rope(
    a: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None = None,
    **options: Any,
) -> mx.array:
    """Return what ``mx.fast.rope`` returns of ``a`` [rows, heads, tokens, width], up to rounding.

    Any thread; lazy. Calls that this is not meant for (several tokens, one offset for all rows, other types)
    go to the original.
    """
    if traditional or options or not isinstance(offset, mx.array) or not _suits(a, dims, offset):
        return _mlx_rope(
            a,
            dims,
            traditional=traditional,
            base=base,
            scale=scale,
            offset=offset,
            freqs=freqs,
            **options,
        )
    cosines, sines = _angles(offset, dims, base, scale, freqs)
    half = dims // 2
    turned = _turn(a[..., :half], a[..., half:dims], cosines, sines)
    rest = [] if dims == a.shape[3] else [a[..., dims:]]
    return mx.concatenate([*turned, *rest], axis=-1)


def _suits(a: mx.array, dims: int, offset: mx.array) -> bool:
    if a.ndim != _AXES or a.dtype != mx.float32 or not computes_on_cpu():
        return False
    return a.shape[2] == 1 and dims % 2 == 0 and dims <= a.shape[3] and offset.shape == (a.shape[0],)


def _turned(left: mx.array, right: mx.array, cosines: mx.array, sines: mx.array) -> list[mx.array]:
    return [left * cosines - right * sines, left * sines + right * cosines]


_turn = cast("Callable[..., list[mx.array]]", mx.compile(_turned))


class _Kept(threading.local):
    """The angles of one array of offsets on this thread, by everything else that they depend on."""

    def __init__(self) -> None:
        self.offset: mx.array | None = None
        self.angles: dict[tuple[int, float | None, float, int], Angles] = {}
        self.freqs: list[mx.array | None] = []


_kept = _Kept()


def keep_angles_of(offset: mx.array | None) -> None:
    """Compute the angles of ``offset`` once, from now on, on this thread; of no others.

    It must not be changed in place, as mlx-lm's own caches do with theirs.
    """
    _kept.offset, _kept.angles, _kept.freqs = offset, {}, []


def _angles(offset: mx.array, dims: int, base: float | None, scale: float, freqs: mx.array | None) -> Angles:
    """Return cosines and sines, [rows, 1, 1, dims / 2], lazily."""
    if offset is not _kept.offset:
        return _computed(offset, dims, base, scale, freqs)
    key = (dims, base, scale, id(freqs))
    if key not in _kept.angles:
        _kept.freqs.append(freqs)  # its id must not become another's
        _kept.angles[key] = _computed(offset, dims, base, scale, freqs)
    return _kept.angles[key]


def _computed(
    offset: mx.array, dims: int, base: float | None, scale: float, freqs: mx.array | None
) -> Angles:
    if freqs is None:
        places = mx.arange(0, dims // 2, dtype=mx.float32)
        turns = mx.exp(places * (-math.log(cast("float", base)) / (dims // 2)))
    else:
        turns = 1.0 / freqs
    theta = (offset.astype(mx.float32) * scale)[:, None, None, None] * turns
    return mx.cos(theta), mx.sin(theta)

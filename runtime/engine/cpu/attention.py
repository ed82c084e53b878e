"""Attention and gated activations in float32 on a CPU, without MLX's scalar ``exp``.

On a CPU MLX computes ``exp`` element by element: 13 ns and more each, against 0.6 ns in NumPy. Attention over
the prompt and ``silu`` were most of a prefill by it. Measured on an Emerald Rapids server, CPU time of one
thread, 9 heads of 64 over 3: attention of 512 queries over 2,048 keys 560 ms there, 54 ms here; swiglu of
512 x 1,536 21 ms there, 1.7 ms here (benchmarks/prefill.py measures a whole prompt).

``install`` replaces ``mx.fast.scaled_dot_product_attention``, which mlx-lm calls, and ``swiglu`` in mlx-lm's
models. Both compute with evaluated arrays: a call waits for its operands, so a prefill is computed while its
graph is built, and its launch takes as long as the pass. No gradient passes through them. The activations of
a decode step stay in MLX's graph, by ``power``, which takes 4.5 ms of a step of 8 rows instead of 11.

Shapes alone (queries of a row; never the batch, load or time) decide which road a call takes, so the same
prompt in the same chunks gives the same state. Operands are read where they lie, through views that are gone
when the call returns.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import mlx.core as mx
import numpy as np
from mlx_lm.models import activations
from threadpoolctl import ThreadpoolController

from ..device import computes_on_cpu
from .blocks import Operands, attend

if TYPE_CHECKING:
    from collections.abc import Callable

    from .blocks import F32, Mask

ROAD: Final = f"2 numpy {np.__version__}"
"""Names these computations in the identity of states; to be raised when their numbers change."""

MIN_QUERIES: Final = 16
"""Queries of a row below which MLX computes. A decode step of the default model, which would wait for each of
its 30 layers here, took 1.28, 1.18 and 0.89 times MLX's CPU time over 250, 1,000 and 2,000 keys."""

_AXES: Final = 4
_LOG2_E: Final = math.log2(math.e)
_NUMPY_BLAS: Final = "libscipy_openblas"
_mlx_attention = mx.fast.scaled_dot_product_attention
_mlx_swiglu = cast("Callable[[mx.array, mx.array], mx.array]", activations.swiglu)


def install() -> None:
    """Use these computations in this process if its device is the CPU; else, and once done, do nothing.

    Call it after the model is loaded or before: models that are imported already are seen to. NumPy's own
    BLAS is held to one thread: blocks are shared among threads here, and a second pool of spinning BLAS
    threads beside MLX's took 43 s of CPU time instead of 13 on a machine that others kept busy.
    """
    if not computes_on_cpu():
        return
    if mx.fast.scaled_dot_product_attention is not attention:
        bundled = cast("Any", ThreadpoolController()).select(prefix=_NUMPY_BLAS)
        bundled.limit(limits=1)
        mx.fast.scaled_dot_product_attention = attention
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_lm.models.") and getattr(module, "swiglu", None) is _mlx_swiglu:
            vars(module)["swiglu"] = swiglu


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
    **options: Any,
) -> mx.array:
    """Return what ``mx.fast.scaled_dot_product_attention`` returns, up to rounding.

    Any thread, several at once, under the stream that the operands were made on. Calls that this is not
    meant for (few queries, other types or masks, a trace of ``mx.compile``) go to the original.
    """
    if not options and _suits(q, k, v, mask, sinks) and _evaluated(q, k, v, mask, sinks):
        shown = _shown(mask, (*q.shape[:3], k.shape[2]))
        sunk = None if sinks is None else _view(sinks)
        result = attend(Operands(_view(q), _view(k), _view(v), scale, shown, sunk))
        return cast("Any", mx.array(result)).transpose(0, 2, 1, 3)
    return _mlx_attention(q, k, v, scale=scale, mask=cast("Any", mask), sinks=sinks, **options)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Return ``silu(gate) * x``, up to rounding; under the same terms as ``attention``, lazy for few rows."""
    if not _suits_gate(gate, x):
        return _mlx_swiglu(gate, x)
    if gate.ndim > 1 and gate.shape[-2] >= MIN_QUERIES and _evaluated(gate, x):
        gates = _view(gate)
        with np.errstate(over="ignore"):  # a gate far below zero: exp is infinite, its sigmoid 0
            result = np.negative(gates)
            np.exp(result, out=result)
            result += 1
            np.divide(gates, result, out=result)
            result *= _view(x)
        return mx.array(result)
    return _by_power(gate, x)


def _powered(gate: mx.array, x: mx.array) -> mx.array:
    return gate * x / (1.0 + mx.power(2.0, gate * -_LOG2_E))


_by_power = cast("Callable[[mx.array, mx.array], mx.array]", mx.compile(_powered, shapeless=True))


def _suits(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | str | None, sinks: mx.array | None
) -> bool:
    """Say whether NumPy computes this. What is malformed is left to MLX to refuse."""
    floats = (q, k, v) if sinks is None else (q, k, v, sinks)
    if any(each.dtype != mx.float32 for each in floats) or not computes_on_cpu():
        return False
    if not q.ndim == k.ndim == v.ndim == _AXES or q.shape[2] < MIN_QUERIES or k.shape[:3] != v.shape[:3]:
        return False
    (batch, heads, length, size), total = q.shape, k.shape[2]
    if k.shape[0] != batch or k.shape[3] != size or heads % k.shape[1] or total == 0:
        return False
    if sinks is not None and sinks.shape != (heads,):
        return False
    if isinstance(mask, mx.array):
        return mask.dtype in {mx.float32, mx.bool_} and _broadcasts(mask.shape, (batch, heads, length, total))
    return mask is None or (mask == "causal" and total >= length)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    axes = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(one in {1, other} for one, other in axes)


def _suits_gate(gate: mx.array, x: mx.array) -> bool:
    return gate.shape == x.shape and gate.dtype == x.dtype == mx.float32 and computes_on_cpu()


def _evaluated(*operands: object) -> bool:
    """Evaluate the arrays among the operands; False where they have no values, as in a trace.

    What fails for another reason fails again, with its own message, in the graph that MLX computes.
    """
    try:
        mx.eval([each for each in operands if isinstance(each, mx.array)])  # pyright: ignore[reportUnknownMemberType]
    except (RuntimeError, ValueError):
        return False
    return True


def _shown(mask: mx.array | str | None, shape: tuple[int, ...]) -> Mask:
    if isinstance(mask, mx.array):
        return np.broadcast_to(_view(mask), shape)
    return "causal" if mask == "causal" else None


def _view(array: mx.array) -> F32:
    """Return the array's own memory as NumPy sees it."""
    return np.asarray(memoryview(cast("Any", array)))

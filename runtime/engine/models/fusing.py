"""Projections of the same input, computed as one product.

Attention projects its input three times and a gated feed-forward twice. On a CUDA device a decode step is
bound by what the host does for each kernel, a matrix product of several rows most of all (its kernel is
looked up anew every time); so products that share their input are joined: one weight, one kernel, views of
the result. The sums are the same; which kernel takes them may differ, so it is part of the numerical identity
(``state/identity.py``).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx
from mlx import nn

from ..device import computes_on_cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIBLINGS: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names under which mlx-lm's modules hold projections of one input, in the order in which they call them."""

_ARRAYS: Final = ("weight", "scales", "biases", "bias")
_TRAITS: Final = ("bits", "group_size", "mode")


def fuses() -> bool:
    """Return whether joined projections are the faster ones here: on CUDA. On a CPU they gain nothing."""
    return computes_on_cuda()


def fuse_projections(model: nn.Module, trial: Callable[[], object]) -> int:
    """Join sibling projections of ``model`` and return how many modules have joined ones.

    ``trial`` calls the model once. Siblings that turn out not to be called with one input, one after the
    other, are set apart again. Only exact Linear and QuantizedLinear layers are joined, of one kind, so
    adapters and models' own layers stay as they are, and a model that looks into its projections stays whole.
    Before any lane runs; evaluates nothing by itself.
    """
    joined = [(owner, names, _join(owner, names)) for owner, names in _found(model)]
    try:
        trial()
    except (AttributeError, LookupError, TypeError):
        for _, _, joint in joined:
            joint.served = False
    apart = [entry for entry in joined if not entry[2].served]
    for owner, names, joint in apart:
        for name, layer in zip(names, joint.split(), strict=True):
            setattr(owner, name, layer)
    return len(joined) - len(apart)


class Joint:
    """Several projections in one layer. Threads may share it: each sees its own inputs alone."""

    def __init__(self, linear: nn.Module, widths: Sequence[int]) -> None:
        self.linear = linear
        self.served = False
        self._cuts = [sum(widths[: place + 1]) for place in range(len(widths) - 1)]
        self._mine = threading.local()

    def part(self, place: int, x: mx.array) -> mx.array:
        """Return projection ``place`` of ``x``. The last one ends the input's stay here."""
        open_ = cast("tuple[mx.array, list[mx.array]] | None", getattr(self._mine, "open", None))
        if open_ is None or open_[0] is not x:
            whole = cast("mx.array", self.linear(x))
            open_ = (x, mx.split(whole, self._cuts, axis=-1))
            self._mine.open = open_ if place == 0 else None
            self.served = self.served and place == 0
        elif place == len(self._cuts):
            self._mine.open = None
            self.served = True
        return open_[1][place]

    def split(self) -> list[nn.Module]:
        """Return the projections as layers of their own again."""
        cut = {name: mx.split(array, self._cuts, axis=0) for name, array in _arrays(self.linear)}
        places = range(len(self._cuts) + 1)
        return [_layer_like(self.linear, {name: parts[n] for name, parts in cut.items()}) for n in places]


class Part(nn.Module):
    """One of the projections of a Joint; the first holds its weights."""

    def __init__(self, joint: Joint, place: int) -> None:
        super().__init__()
        self._joint = joint
        self._place = place
        if place == 0:
            self.joined = joint.linear

    def __call__(self, x: mx.array) -> mx.array:
        """Return this projection of ``x``."""
        return self._joint.part(self._place, x)


def _found(model: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    modules = cast("list[nn.Module]", model.modules())  # pyright: ignore[reportUnknownMemberType]
    return [(owner, names) for owner in modules for names in SIBLINGS if _alike(owner, names)]


def _alike(owner: nn.Module, names: Sequence[str]) -> bool:
    held = cast("dict[str, object]", owner)
    layers = [held.get(name) for name in names]
    kinds = {_kind(layer) for layer in layers}
    return len(kinds) == 1 and None not in kinds


def _kind(layer: object) -> tuple[object, ...] | None:
    """Return what two layers must share to become one; None for a layer of another class."""
    if type(layer) not in {nn.Linear, nn.QuantizedLinear}:
        return None
    arrays = tuple((name, array.dtype, array.shape[1:]) for name, array in _arrays(cast("nn.Module", layer)))
    return (type(layer), arrays, tuple(getattr(layer, trait, None) for trait in _TRAITS))


def _arrays(layer: nn.Module) -> list[tuple[str, mx.array]]:
    held = cast("dict[str, mx.array | None]", layer)
    found = ((name, held.get(name)) for name in _ARRAYS)
    return [(name, array) for name, array in found if array is not None]


def _join(owner: nn.Module, names: Sequence[str]) -> Joint:
    layers = [cast("nn.Module", getattr(owner, name)) for name in names]
    held = [dict(_arrays(layer)) for layer in layers]
    whole = {name: mx.concatenate([each[name] for each in held], axis=0) for name in held[0]}
    joint = Joint(_layer_like(layers[0], whole), [each["weight"].shape[0] for each in held])
    for place, name in enumerate(names):
        setattr(owner, name, Part(joint, place))
    return joint


def _layer_like(layer: nn.Module, arrays: dict[str, mx.array]) -> nn.Module:
    """Return a layer of the same kind over other arrays."""
    twin = type(layer).__new__(type(layer))
    nn.Module.__init__(twin)
    for trait in _TRAITS:
        if hasattr(layer, trait):
            setattr(twin, trait, getattr(layer, trait))
    for name in _ARRAYS:
        if name in arrays:
            setattr(twin, name, arrays[name])
        elif name in cast("dict[str, object]", layer):
            setattr(twin, name, None)
    return twin

"""Resolving a KV scheme at the start: which layers take it, and whether model and device can compute with it.

Everything that could go wrong with a scheme at a request is tried here first (REQUIREMENTS C6): the widths of
every layer, a call of the model over quantised layers alone and in a batch, and the device's kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from ..errors import SchemeRefused
from .caches import batch_of, can_share, quantisable
from .layers import leaves, signature_of
from .scheme import BF16, KvScheme, LayerScheme
from .scheme_file import FILE_NAME, read_layers
from .scheme_kernels import check_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .scheme import KvChoice

_UNIFORM_BITS: Final = {"kv8": 8, "kv4": 4}
_NAMED_AT_MOST: Final = 8


def resolve(choice: KvChoice, model: Any, folder: Path | None = None) -> KvScheme:
    """Return the scheme of ``model`` for what is asked; ``folder`` is where its kv_config.json would be.

    Any thread, on that thread's default stream; it computes next to nothing. Raises SchemeRefused, naming the
    layers and their numbers, when no layer takes the scheme, when one that the file names does not, when the
    model does not compute with quantised layers, or when the device does not.
    """
    if not choice.quantises:
        return BF16
    if choice.scheme.startswith("turbo"):
        raise SchemeRefused(f"kv.scheme = {choice.scheme!r}: TurboQuant is not in this version yet")
    caches = make_prompt_cache(model)
    model(mx.zeros((1, 2), mx.uint32), cache=caches)
    asked = _asked(choice, caches, folder)
    layers, reasons = _fitting(list(leaves(caches)), asked)
    scheme = KvScheme(choice.scheme, layers, choice.start)
    refused = _not_computable(model, scheme)
    if refused:
        reasons |= refused
        scheme = replace(scheme, layers=_without(layers, refused))
    _require(choice, scheme, asked, reasons)
    check_kernels(model, scheme)
    return replace(scheme, notes=_summed(reasons))


def _asked(choice: KvChoice, caches: Sequence[Any], folder: Path | None) -> dict[int, LayerScheme]:
    """Return what is asked of each flat layer; those of nested lists get what their list is asked."""
    tops = [place for place, cache in enumerate(caches) for _ in leaves([cache])]
    if choice.scheme != "config":
        how = LayerScheme(_UNIFORM_BITS[choice.scheme], choice.group_size)
        return dict.fromkeys(range(len(tops)), how)
    if folder is None:
        raise SchemeRefused(f'kv.scheme = "config" needs a model folder with {FILE_NAME}')
    named = read_layers(folder, choice.group_size)
    if beyond := sorted(layer for layer in named if layer >= len(caches)):
        raise SchemeRefused(
            f"{folder / FILE_NAME}: layer_idx {beyond[0]}, but the model's cache layers are {len(caches)}"
        )
    return {flat: named[top] for flat, top in enumerate(tops) if top in named}


def _fitting(
    flat: Sequence[Any], asked: Mapping[int, LayerScheme]
) -> tuple[tuple[LayerScheme | None, ...], dict[int, str]]:
    """Return each layer's bits and widest whole group, and why the others have none."""
    layers: list[LayerScheme | None] = []
    reasons: dict[int, str] = {}
    for place, cache in enumerate(flat):
        how = asked.get(place)
        if how is None:
            layers.append(None)
            continue
        holds = getattr(cache, "keys", None) is not None
        group = quantisable(cache, how.bits, how.group_size) if holds else None
        layers.append(None if group is None else LayerScheme(how.bits, group))
        if group is None:
            reasons[place] = _unfit(cache, how)
    return tuple(layers), reasons


def _unfit(cache: Any, how: LayerScheme) -> str:
    signature = signature_of(cache)
    keys, values = getattr(cache, "keys", None), getattr(cache, "values", None)
    if keys is None or values is None:
        return f"{signature} has nothing to quantise"
    widths = f"keys {keys.shape[-1]} and values {values.shape[-1]} wide"
    if keys.shape[1] == 1 and keys.shape[-1] != values.shape[-1]:
        return f"{signature} holds latents ({widths}) that the model computes with"
    return f"{signature}: {widths} have no whole groups of 32 to {how.group_size}"


def _not_computable(model: Any, scheme: KvScheme) -> dict[int, str]:
    """Return the layers that the model cannot compute with quantised, and why; each is tried if all fail."""
    if not scheme.quantises or _failure(model, scheme) is None:
        return {}
    places = [place for place, how in enumerate(scheme.layers) if how is not None]
    found: dict[int, str] = {}
    for place in places:
        others = {each: "" for each in places if each != place}
        failure = _failure(model, replace(scheme, layers=_without(scheme.layers, others)))
        if failure is not None:
            found[place] = f"the model cannot compute with it quantised: {failure}"
    return found


def _failure(model: Any, scheme: KvScheme) -> str | None:
    """Call the model lazily over quantised layers, alone and in a batch of two; return what it raises."""
    try:
        rows: list[list[Any]] = []
        for tokens in (3, 2):
            caches = make_prompt_cache(model)
            model(mx.zeros((1, tokens), mx.uint32), cache=caches)
            caches = scheme.converted(caches)
            model(mx.zeros((1, 2), mx.uint32), cache=caches)
            rows.append(caches)
        if all(can_share(cache) for cache in rows[0]):
            batch = [batch_of(list(layer)) for layer in zip(*rows, strict=True)]
            model(mx.zeros((2, 1), mx.uint32), cache=batch)
    # The model's code is foreign, and over a cache that it does not know it may raise anything.
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:200]}"
    return None


def _without(
    layers: tuple[LayerScheme | None, ...], places: Mapping[int, str]
) -> tuple[LayerScheme | None, ...]:
    return tuple(None if place in places else how for place, how in enumerate(layers))


def _require(
    choice: KvChoice, scheme: KvScheme, asked: Mapping[int, LayerScheme], reasons: Mapping[int, str]
) -> None:
    if scheme.quantises and (choice.scheme != "config" or not reasons):
        return
    if not asked:
        return
    which = (
        "none of the model's cache layers takes it" if not scheme.quantises else "some named layers do not"
    )
    raise SchemeRefused(f"kv.scheme = {choice.scheme!r}: {which}: {'; '.join(_summed(reasons))}")


def _summed(reasons: Mapping[int, str]) -> tuple[str, ...]:
    """Return the reasons, each once with its layers."""
    layers: dict[str, list[int]] = {}
    for place, reason in sorted(reasons.items()):
        layers.setdefault(reason, []).append(place)
    return tuple(f"{_named(places)}: {reason}" for reason, places in layers.items())


def _named(places: Sequence[int]) -> str:
    shown = ", ".join(map(str, places[:_NAMED_AT_MOST]))
    more = f" and {len(places) - _NAMED_AT_MOST} more" if len(places) > _NAMED_AT_MOST else ""
    return f"layer{'s' if len(places) > 1 else ''} {shown}{more}"

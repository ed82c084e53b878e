"""What a cache layer keeps of its tokens, as a flat list of arrays that are cut, joined and padded alike.

A *plane* is an array [rows of the batch, heads, tokens, width]. A plain layer has two (keys, values), a
quantised one six (packed, scales and biases of each). They differ in type and width only, so whatever is done
along the batch or the tokens is done to every plane in the same way, and quantised rows are joined and cut
without being decoded: groups run along the width (REQUIREMENTS B4). Zeros decode to zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Sequence

Planes: TypeAlias = "list[mx.array]"

PARTS: Final = 3
"""Arrays of one quantised half: packed, scales, biases."""

STEP: Final = 256
"""Tokens by which a layer grows, as mlx-lm's do."""

_TOKENS: Final = 2


def quantise(keys: mx.array, values: mx.array, *, bits: int, group_size: int) -> Planes:
    """Return the six planes of keys and values. ValueError from MLX for widths that have no whole groups."""
    return [
        plane
        for half in (keys, values)
        for plane in mx.quantize(half, group_size=group_size, bits=bits)  # pyright: ignore[reportUnknownMemberType]
    ]


def rows_of(planes: Planes) -> int:
    """Return how many tokens the planes have room for."""
    return planes[0].shape[_TOKENS]


def room_for(tokens: int) -> int:
    """Return the whole steps that hold so many tokens and one more, so that decode starts in place."""
    return (tokens // STEP + 1) * STEP


def blank(like: Planes, tokens: int, *, rows: int | None = None) -> Planes:
    """Return zeros of the planes' types and widths, for so many tokens (and rows of the batch)."""
    return [
        mx.zeros((rows or plane.shape[0], plane.shape[1], tokens, plane.shape[3]), plane.dtype)
        for plane in like
    ]


def cut(planes: Planes, start: int, stop: int) -> Planes:
    """Return a range of tokens, lazily; the planes themselves if it is all of them."""
    if start == 0 and stop == rows_of(planes):
        return planes
    return [plane[..., start:stop, :] for plane in planes]


def joined(parts: Sequence[Planes], axis: int = _TOKENS) -> Planes:
    """Return the parts one after the other along the tokens, or with ``axis`` 0 along the batch."""
    if len(parts) <= 1:
        return parts[0] if parts else []
    return [mx.concatenate(list(same), axis=axis) for same in zip(*parts, strict=True)]


def padded(planes: Planes, left: int, right: int) -> Planes:
    """Return the planes with zeros before and behind their tokens."""
    if not left and not right:
        return planes
    return [mx.pad(plane, [(0, 0), (0, 0), (left, right), (0, 0)]) for plane in planes]


def rolled(planes: Planes, shift: int) -> Planes:
    """Return the planes with every token ``shift`` places further, the last ones in front."""
    return [mx.roll(plane, shift, _TOKENS) for plane in planes] if shift else planes


def picked(planes: Planes, lines: mx.array) -> Planes:
    """Return some rows of the batch."""
    return [plane[lines] for plane in planes]


def single(planes: Planes, line: int, start: int, stop: int) -> Planes:
    """Return a range of one row's tokens in buffers of their own."""
    cuts = [plane[line : line + 1, :, start:stop] for plane in planes]
    return [mx.contiguous(each) if each.size else each for each in cuts]


def lent(planes: Planes) -> Planes:
    """Return new Python objects over the same buffers: an update of either copies, and changes one only."""
    return [plane.view(plane.dtype) for plane in planes]


def write(planes: Planes, new: Planes, start: int) -> None:
    """Put the tokens of ``new`` at ``start``; in place where nothing else holds the buffer."""
    stop = start + rows_of(new)
    for plane, other in zip(planes, new, strict=True):
        plane[..., start:stop, :] = other


def grown(planes: Planes, new: Planes, used: int) -> Planes:
    """Return planes with the first ``used`` tokens and room for those of ``new``; ``planes`` if they have it.

    Whole steps, as mlx-lm's caches grow.
    """
    more = rows_of(new)
    if planes and used + more <= rows_of(planes):
        return planes
    room = (STEP + more - 1) // STEP * STEP
    if not planes:
        return blank(new, room)
    return joined([cut(planes, 0, used), blank(planes, room)])


def halves(planes: Planes) -> tuple[Any, Any]:
    """Return keys and values as attention takes them: two arrays, or two triples."""
    if len(planes) == 2 * PARTS:
        return tuple(planes[:PARTS]), tuple(planes[PARTS:])
    keys, values = planes
    return keys, values


def of_halves(keys: Any, values: Any) -> Planes:
    """Return the planes of what ``halves`` gave, or of a row's layer; none while it is empty."""
    if keys is None:
        return []
    return [keys, values] if isinstance(keys, mx.array) else [*keys, *values]

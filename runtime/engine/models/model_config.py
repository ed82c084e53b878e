"""What a model directory's JSON files say about serving it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

UNBOUNDED_CONTEXT_LENGTH = 1 << 20
"""Tokens, for models that state no limit (recurrent ones have none but memory)."""

_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
    "max_seq_length",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """``context_length`` in tokens; ``vocab_size`` is the width of the logits, None when not stated.

    ``default_temperature`` is what the makers recommend, 0 (greedy) when they recommend nothing.
    ``end_tokens`` end a reply. ``values`` is config.json as mlx-lm read it.
    """

    context_length: int
    vocab_size: int | None
    default_temperature: float
    end_tokens: frozenset[int]
    values: Mapping[str, object]

    @classmethod
    def read(cls, folder: Path, values: Mapping[str, object]) -> Self:
        """Return the facts of a directory whose config.json is already read as ``values``."""
        generation = _read_object(folder / "generation_config.json")
        parts = (values, _object(values.get("text_config")))
        lengths = (_whole(part.get(key)) for key in _CONTEXT_KEYS for part in parts)
        vocabularies = (_whole(part.get("vocab_size")) for part in parts)
        ends = (*(part.get("eos_token_id") for part in parts), generation.get("eos_token_id"))
        return cls(
            context_length=next(filter(None, lengths), UNBOUNDED_CONTEXT_LENGTH),
            vocab_size=next(filter(None, vocabularies), None),
            default_temperature=_temperature(generation),
            end_tokens=frozenset(token for value in ends for token in _tokens(value)),
            values=values,
        )


def _read_object(path: Path) -> Mapping[str, object]:
    """Return a JSON object from a file that may be missing or broken; mlx-lm goes on then, too."""
    with contextlib.suppress(OSError, ValueError):
        return _object(orjson.loads(path.read_bytes()))
    return {}


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _temperature(generation: Mapping[str, object]) -> float:
    value = generation.get("temperature")
    if generation.get("do_sample") is True and isinstance(value, int | float) and value > 0:
        return float(value)
    return 0.0


def _tokens(value: object) -> Iterator[int]:
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    for item in values:
        if isinstance(item, int) and not isinstance(item, bool):
            yield item

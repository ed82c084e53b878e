"""A tokenizer of bytes with a few marks, and guides over it for the tiny models."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from samovar.runtime.engine.grammar.compiling import Grammars
from samovar.runtime.engine.prompt import PLAIN_REPLIES, Constraint, ReplyFormat
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.kit.models import VOCAB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from samovar.runtime.engine.prompt import Guide, RowGuide

END = 0
MARKS = {END: "<end>", 1: "<tool_call>", 2: "</tool_call>", 3: "<think>", 4: "</think>"}
LAST = 0xBF
"""Bytes above this one are no tokens: ids of the tiny models that no tokenizer knows."""


def _shown(byte: int) -> str:
    """Return the character that stands for a byte in byte-level vocabularies."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [each for each in range(256) if each not in shown]
    return chr(byte) if byte in shown else chr(0x100 + hidden.index(byte))


@functools.cache
def byte_tokenizer(*marks: str) -> Tokenizer:
    """Return a tokenizer whose ids are bytes, but for MARKS; more ``marks`` come behind the bytes.

    The same one each time, not to be changed.
    """
    vocabulary = {MARKS.get(byte, _shown(byte)): byte for byte in range(LAST + 1)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    added = [mark for mark in (*MARKS.values(), *marks) if mark]
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in added])
    return tokenizer


@functools.cache
def grammars(reply: ReplyFormat = PLAIN_REPLIES, marks: tuple[str, ...] = ()) -> Grammars:
    return Grammars(byte_tokenizer(*marks), {END}, reply)


def guide(constraint: Constraint, *, in_reasoning: bool = False, reply: ReplyFormat = PLAIN_REPLIES) -> Guide:
    return grammars(reply).compile(constraint, in_reasoning=in_reasoning)


def ids(text: str, marks: tuple[str, ...] = ()) -> list[int]:
    return byte_tokenizer(*marks).encode(text, add_special_tokens=False).ids


def spelled(tokens: Sequence[int]) -> str:
    """Return the text of tokens, marks spelled out."""
    return b"".join(MARKS[token].encode() if token in MARKS else bytes([token]) for token in tokens).decode()


def options(row: RowGuide, vocab: int = VOCAB) -> set[int] | None:
    allowed: NDArray[np.bool_] | None = row.allowed(vocab)
    return None if allowed is None else set(np.flatnonzero(allowed).tolist())


def takes(guide: Guide, tokens: Sequence[int], vocab: int = VOCAB) -> bool:
    """Whether a guide lets a row say just these tokens and then end."""
    row = guide.start(())
    for token in tokens:
        here = options(row, vocab)
        if here is not None and token not in here:
            return False
        row.advance(token)
    here = options(row, vocab)
    return here is not None and END in here

"""One Hugging Face tokenizer, called so that several threads may use it at once."""

from __future__ import annotations

import threading
from secrets import token_hex
from typing import TYPE_CHECKING, Final, Protocol, cast

import numpy as np
import orjson
import tokenizers
from transformers import PreTrainedTokenizerFast

from .detokenize import TokenBytes, byte_level_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .controls import Controls
    from .prompts import Offsets

_QUICK_CHARACTERS: Final = 2_000
"""A text up to this long is encoded at once, with the interpreter's lock held: two milliseconds or so."""


class _Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    added_tokens_decoder: Mapping[int, tokenizers.AddedToken]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...

    def __len__(self) -> int: ...


class Tokenizing:
    """Text to ids and back as the tokenizer does it: text that spells an added token becomes that token.

    ``backend`` is the Rust tokenizer, None where asking it would mean something else. ``table`` are the bytes
    of every id of a byte-level tokenizer, None for another kind. ``added`` are its
    added tokens, special or not, by id. ``longest_bytes`` are the most bytes of text that one token may stand
    for; None where that is not bounded. Any thread.
    """

    def __init__(self, tokenizer: object) -> None:
        self._tokenizer = cast("_Tokenizer", tokenizer)
        self._lock = threading.Lock()
        self.backend = _plain_backend(tokenizer)
        self.table: TokenBytes | None = None if self.backend is None else byte_level_table(self.backend)
        self.added: Mapping[int, tokenizers.AddedToken] = (
            self._tokenizer.added_tokens_decoder
            if self.backend is None
            else self.backend.get_added_tokens_decoder()
        )
        self.longest_bytes = self._longest_bytes()

    @property
    def vocab_size(self) -> int:
        """How many ids there are, counted up to the highest one."""
        if self.table is not None:
            return len(self.table)
        return max(len(self._tokenizer), max(self.added, default=-1) + 1)

    def encode(self, text: str, *, with_special: bool = False) -> Sequence[int]:
        """Return the ids of ``text``; ``with_special``: between those that the tokenizer adds around one."""
        if self.backend is not None:
            return _encoding(self.backend, text, with_special=with_special).ids
        with self._lock:  # tokenizers in Python keep state while they work
            return self._tokenizer.encode(text, add_special_tokens=with_special)

    def encode_with_ends(self, text: str) -> tuple[Sequence[int], Offsets | None]:
        """Return the ids of ``text`` and where each ends in it; None for a tokenizer in Python."""
        if self.backend is None:
            return self.encode(text), None
        encoding = _encoding(self.backend, text)
        return encoding.ids, _ends(encoding)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the whole text of ``tokens``, special tokens left out."""
        if self.backend is not None:
            return self.backend.decode(tokens, skip_special_tokens=True)
        with self._lock:
            return self._tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )

    def blind_to(self, controls: Controls) -> BlindTokenizing | None:
        """Return the same tokenizer reading control tokens as text; None where it cannot be had.

        Takes about as long as loading it, and as much memory.
        """
        return None if self.backend is None else BlindTokenizing(self.backend, controls)

    def _longest_bytes(self) -> int | None:
        """A normalizer may shorten a text, and an added token may swallow the spaces beside it."""
        if self.backend is None or self.table is None or self.backend.normalizer is not None:
            return None
        if any(token.lstrip or token.rstrip for token in self.added.values()):
            return None
        return max(*map(len, self.table), *(len(token.content.encode()) for token in self.added.values()), 1)


class BlindTokenizing:
    """A copy of a tokenizer that does not see some added tokens: their spellings are ordinary text.

    Text behind an added token may be encoded otherwise than at the beginning, so it is encoded behind a
    token of its own, whose spelling nobody can guess.
    """

    def __init__(self, backend: tokenizers.Tokenizer, controls: Controls) -> None:
        described = cast("dict[str, list[dict[str, object]]]", orjson.loads(backend.to_str()))
        for token in described["added_tokens"]:
            token["special"] = token["id"] in controls.ids
        self._backend = tokenizers.Tokenizer.from_str(orjson.dumps(described).decode())
        self._backend.encode_special_tokens = True  # as text, that means
        self._before = f"\ufdd0{token_hex(8)}\ufdd0"
        self._backend.add_tokens([tokenizers.AddedToken(self._before, normalized=False)])  # pyright: ignore[reportUnknownMemberType]

    def encode_with_ends(self, text: str, *, first: bool) -> tuple[Sequence[int], Offsets]:
        """Return the ids of ``text`` and where each ends. ``first``: it begins the prompt."""
        if first:
            encoding = _encoding(self._backend, text)
            return encoding.ids, _ends(encoding)
        encoding = _encoding(self._backend, self._before + text)
        return encoding.ids[1:], _ends(encoding)[1:] - len(self._before)


def _ends(encoding: tokenizers.Encoding) -> Offsets:
    return np.array([end for _, end in encoding.offsets], dtype=np.int64)


def _encoding(backend: tokenizers.Tokenizer, text: str, *, with_special: bool = False) -> tokenizers.Encoding:
    """Encode ``text`` while other threads run.

    Only the tokenizers' call for batches lets them: ``encode`` held the interpreter's lock, and with it the
    event loop, for 0.24 s over 34,000 tokens and for 10 s over 5 MB.
    """
    if len(text) <= _QUICK_CHARACTERS:
        return backend.encode(text, add_special_tokens=with_special)
    return backend.encode_batch([text], add_special_tokens=with_special)[0]


def _plain_backend(tokenizer: object) -> tokenizers.Tokenizer | None:
    """Return the Rust tokenizer behind ``tokenizer`` where calling it directly means the same.

    It does when the class adds nothing of its own to encoding or decoding, and no truncation or padding
    is set. The Rust side is safe to share; the Python side sets its state on every call.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    kind = type(tokenizer)
    names = ("encode", "_encode_plus", "decode", "_decode")
    if any(getattr(kind, name, None) is not getattr(PreTrainedTokenizerFast, name, None) for name in names):
        return None
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return backend

"""Streaming detokenisers: one row's tokens in, settled text out (``port.Detokenizer``)."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, TypeAlias, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import tokenizers

TokenBytes: TypeAlias = "list[bytes]"

_REPLACEMENT = "\ufffd"
# A UTF-8 character has at most four bytes, so a window that stays unsettled for longer never settles.
_UNSETTLED_TOKENS = 8

_Utf8 = codecs.getincrementaldecoder("utf-8")


def _byte_of_character() -> dict[str, int]:
    """Return the alphabet of byte-level BPE: printable bytes stand for themselves, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(0x100) if chr(byte) not in alphabet)
    alphabet |= {chr(0x100 + index): byte for index, byte in enumerate(hidden)}
    return alphabet


def byte_level_table(tokenizer: tokenizers.Tokenizer) -> TokenBytes | None:
    """Return the bytes of every token id of a byte-level tokenizer, None for a tokenizer of another kind.

    Special tokens have no bytes, since they are never text.
    """
    decoder = cast("dict[str, dict[str, object] | None]", orjson.loads(tokenizer.to_str()))["decoder"]
    if decoder is None or decoder.get("type") != "ByteLevel":
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    alphabet = _byte_of_character()
    for token, index in vocabulary.items():
        try:
            table[index] = bytes([alphabet[character] for character in token])
        except KeyError:  # an added token outside the alphabet is plain text
            table[index] = token.encode()
    for index, added in tokenizer.get_added_tokens_decoder().items():
        if added.special:
            table[index] = b""
    return table


class BytesDetokenizer:
    """Joins the bytes of tokens and gives out complete characters; well under a microsecond a token.

    An id outside the table has no text. Invalid UTF-8 comes out as U+FFFD, as a decode of the whole
    would give it.
    """

    __slots__ = ("_decode", "_size", "_table")

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._size = len(table)
        self._decode = _Utf8("replace").decode

    def add(self, token: int) -> str:
        """Return the text that ``token`` settled, possibly empty; never an incomplete character."""
        return self._decode(self._table[token]) if 0 <= token < self._size else ""

    def flush(self) -> str:
        """Return what is still held back; incomplete UTF-8 comes out as U+FFFD."""
        return self._decode(b"", final=True)


class WindowDetokenizer:
    """Decodes a short window of tokens twice, with and without the newest, and gives out the difference.

    Works with any tokenizer. The window holds the last settled piece (what joins to it may depend on
    it) and what is unsettled, so a token costs the same however long the row is.
    """

    __slots__ = ("_decode", "_settled", "_settled_text", "_window")

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._settled = 0
        self._settled_text = ""

    def add(self, token: int) -> str:
        """Return the text that ``token`` settled, possibly empty; never an incomplete character."""
        self._window.append(token)
        text = self._decode(self._window)
        pending = len(self._window) - self._settled
        if len(text) <= len(self._settled_text) and pending < _UNSETTLED_TOKENS:
            return ""
        if text.endswith(_REPLACEMENT) and pending < _UNSETTLED_TOKENS:
            return ""
        return self._settle(text)

    def flush(self) -> str:
        """Return what is still held back; incomplete UTF-8 comes out as U+FFFD."""
        return self._settle(self._decode(self._window))

    def _settle(self, text: str) -> str:
        piece = text[len(self._settled_text) :]
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        self._settled_text = self._decode(self._window)
        return piece

"""What reaches the terminal: replies without anything that could steer it, and remarks in a dim colour."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from .speech import Done

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_UNKNOWN: Final = "\ufffd"
_PICTURES: Final = 0x2400  # where Unicode has visible pictures of the first 32 control characters
_LAYOUT: Final = (0x09, 0x0A)
_STEERING: Final[dict[int, str]] = {
    **{code: chr(_PICTURES + code) for code in range(0x20) if code not in _LAYOUT},
    **dict.fromkeys(range(0x7F, 0xA0), _UNKNOWN),  # delete, and the second set of controls
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), _UNKNOWN),  # what reorders text
    **dict.fromkeys(range(0xD800, 0xE000), _UNKNOWN),  # lone surrogates cannot be written
}


def harmless(text: str) -> str:
    """Return ``text`` with every character that could steer a terminal made visible; tabs and lines stay.

    Works character by character, so pieces of a stream can be treated one by one.
    """
    return text.translate(_STEERING)


def is_styled(stream: TextIO) -> bool:
    """Whether a dim colour may be used there."""
    dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not dumb


class Screen:
    """Writes replies to ``out`` and remarks to ``remarks``. What is written is there at once."""

    def __init__(self, out: TextIO, remarks: TextIO, *, styled: bool) -> None:
        self._out = out
        self._remarks = remarks
        self._begin, self._end = (_DIM, _PLAIN) if styled else ("", "")
        self._at_start = True

    def say(self, text: str) -> None:
        """Write more of a reply."""
        self._write(harmless(text), text)

    def think(self, text: str) -> None:
        """Write more of the reasoning, dim."""
        self._write(f"{self._begin}{harmless(text)}{self._end}", text)

    def part(self) -> None:
        """Begin a new line unless at the beginning of one."""
        if not self._at_start:
            self._write("\n", "\n")

    def remark(self, text: str) -> None:
        """Write a line of our own, dim."""
        self.part()
        self._remarks.write(f"{self._begin}{harmless(text)}{self._end}\n")
        self._remarks.flush()

    def _write(self, shown: str, text: str) -> None:
        if text:
            self._out.write(shown)
            self._out.flush()
            self._at_start = text.endswith("\n")


def figures(done: Done) -> str:
    """Return what a reply took, in one line; "" where nothing is known."""
    parts: list[str] = []
    if done.tokens is not None:
        rate = "" if done.tokens_per_s is None else f" at {done.tokens_per_s:.1f} tokens/s"
        parts.append(f"{done.tokens} {'token' if done.tokens == 1 else 'tokens'}{rate}")
    if done.cached_tokens is not None and done.prompt_tokens is not None:
        where = f" ({done.tier})" if done.tier not in {None, "none"} else ""
        parts.append(f"{done.cached_tokens} of {done.prompt_tokens} prompt tokens cached{where}")
    if done.cut:
        parts.append("cut at the token limit")
    return " · ".join(parts)

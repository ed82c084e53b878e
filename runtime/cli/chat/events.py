"""Reading server-sent events, as chat completions use them: the data of each event, without names and ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable

MAX_EVENT_BYTES: Final = 4 << 20


class EventTooLarge(Exception):
    """A server sent an event of more than MAX_EVENT_BYTES."""

    code = "event_too_large"
    retryable = False


async def event_data(chunks: AsyncIterable[bytes]) -> AsyncGenerator[str]:
    """Yield the data of every complete event. Comments are skipped; a cut last event is dropped.

    Lines may end in LF, CRLF or CR LF apart in two chunks; bytes that are no UTF-8 come out as U+FFFD.
    Raises EventTooLarge.
    """
    data: list[bytes] = []
    size_bytes = 0
    async for line in _lines(chunks):
        if line.startswith(b"data:"):
            data.append(line.removeprefix(b"data:").removeprefix(b" "))
            size_bytes += len(line)
            if size_bytes > MAX_EVENT_BYTES:
                raise EventTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
        elif not line and data:
            yield b"\n".join(data).decode("utf-8", "replace")
            data, size_bytes = [], 0


async def _lines(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"a line of more than {MAX_EVENT_BYTES} bytes")
        for line in whole:
            yield line.removesuffix(b"\r")

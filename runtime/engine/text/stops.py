"""Stop strings over streamed text: pure, one matcher per row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class StopMatcher:
    """Lets text through up to the first stop string, and never a character of the stop string.

    The first match is the one that is complete earliest when the text is read character by character
    (of two that are complete at once, the longer). That depends on the text alone, not on how it was
    cut into deltas. The longest suffix that could still become a stop string is held back.
    Empty stop strings are ignored. Not thread-safe.
    """

    __slots__ = ("_held", "_stops", "matched", "stopped_by")

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(stop for stop in dict.fromkeys(stops) if stop)
        self._held = ""
        self.matched = False
        self.stopped_by: str | None = None

    def add(self, text: str) -> str:
        """Return the text that is settled now.

        After a match ``matched`` is True, ``stopped_by`` is the stop string, and nothing follows.
        """
        if not self._stops:
            return text
        if self.matched or not text:
            return ""
        window = self._held + text
        found = self._first_match(window)
        if found is not None:
            cut, self.stopped_by = found
            self.matched, self._held = True, ""
            return window[:cut]
        keep = self._undecided(window)
        self._held = window[len(window) - keep :]
        return window[: len(window) - keep]

    def flush(self) -> str:
        """Return what is still held back: the text has ended, so it begins no stop string any more."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, window: str) -> tuple[int, str] | None:
        found = ((window.find(stop), stop) for stop in self._stops)
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        return min(ends)[1:] if ends else None

    def _undecided(self, window: str) -> int:
        """Return the length of the longest suffix that is a proper beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(window)), longest, -1):
                if window.endswith(stop[:length]):
                    longest = length
                    break
        return longest

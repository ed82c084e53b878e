"""From the chunks of a streamed chat completion to pieces of a reply; made for servers of any make."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from .speech import Done, ReplyFailed, Said, Thought

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .speech import Piece

_REASONING: Final = ("reasoning_content", "reasoning")


def read_object(text: str | bytes) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    try:
        found = cast("object", json.loads(text))
    except ValueError:
        return {}
    return object_of(found)


def object_of(value: object) -> Mapping[str, Any]:
    """Return ``value`` where it is a JSON object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


class ChunkReader:
    """Reads one stream. ``clock`` gives seconds. ``over``: the stream has said that it is complete."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first_s: float | None = None
        self._last_s = 0.0
        self._reason: str | None = None
        self._usage: Mapping[str, Any] = {}
        self.over = False

    def read(self, data: str) -> Iterator[Piece]:
        """Yield what an event adds. Raises ReplyFailed where it tells of a failure."""
        if data.strip() == "[DONE]":
            self.over = True
            return
        chunk = read_object(data)
        if error := chunk.get("error"):
            raise _failure(error)
        if usage := object_of(chunk.get("usage")):
            self._usage = usage
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices:
            yield from self._choice(object_of(cast("list[object]", choices)[0]))

    def done(self) -> Done:
        """Return the figures, at the end of the stream. Raises ReplyFailed where it ended too early."""
        if not self.over and self._reason is None:
            raise ReplyFailed("the server ended the reply early", "reply_cut", retryable=True)
        details = object_of(self._usage.get("prompt_tokens_details"))
        ours = object_of(self._usage.get("samovar"))
        tier = ours.get("tier")
        tokens = _count(self._usage.get("completion_tokens"))
        return Done(
            cut=self._reason == "length",
            tokens=tokens,
            prompt_tokens=_count(self._usage.get("prompt_tokens")),
            cached_tokens=_count(details.get("cached_tokens")),
            tier=tier if isinstance(tier, str) else None,
            tokens_per_s=rate(tokens, 0.0 if self._first_s is None else self._last_s - self._first_s),
        )

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[Piece]:
        delta = object_of(choice.get("delta"))
        thought = next((text for name in _REASONING if isinstance(text := delta.get(name), str)), "")
        text = delta.get("content")
        if thought:
            yield Thought(thought)
        if isinstance(text, str) and text:
            yield Said(text)
        if thought or text:
            self._last_s = self._clock()
            self._first_s = self._last_s if self._first_s is None else self._first_s
        if isinstance(reason := choice.get("finish_reason"), str):
            self._reason = reason


def rate(tokens: int | None, seconds: float) -> float | None:
    """Return tokens a second, counted from the first token on; None where that means nothing."""
    return (tokens - 1) / seconds if tokens is not None and tokens > 1 and seconds > 0 else None


def _failure(error: object) -> ReplyFailed:
    told = object_of(error)
    message, code = told.get("message"), told.get("code")
    text = message if isinstance(message, str) else str(error)
    return ReplyFailed(text, code if isinstance(code, str) else "server_error", retryable=True)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

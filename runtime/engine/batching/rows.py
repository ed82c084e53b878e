"""One request inside a backend: its prompt, its prefill, its text, its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ....storage.tokens import TokenIds
from ..port import Cancelled, Delta, Failed, Finished, Prefilled
from ..text.stops import StopMatcher
from .sampling import RowSampler

if TYPE_CHECKING:
    from ..port import Detokenizer, FinishReason, RowRequest, TokenLogprob
    from .masking import RowMask

DETOKENIZER_ERRORS: Final = (LookupError, ValueError, TypeError, OverflowError, RuntimeError)
"""What a tokenizer raises over a token it does not know; anything else is a crash of the lane."""


class Cache(Protocol):
    """What a row needs of an mlx-lm cache layer."""

    @property
    def state(self) -> object:
        """The arrays (and numbers) that the layer holds."""
        ...


class Row:
    """A request from its insertion to its one terminal event. Lane thread only.

    ``prompt`` is everything that stands before the first token drawn here: the request's own prompt, its
    first ``asked`` tokens, then what an earlier lane had emitted. ``caches`` is the row's own cache list
    until it joins the decode batch; then the batch owns the state and the list is empty. ``prefilled``
    counts the tokens of ``prompt`` in it, of which the first ``cached`` were borrowed; the last is never
    prefilled, it is the row's first decode input. ``output`` are the tokens drawn here, ``completed``
    counts the emitted ones, the earlier lane's too. ``publish_at`` are the offsets at which its state is
    published; a prefill pass stops at each, and at ``convert_at``, the offset at which its state is
    converted to the lane's KV scheme (None when it is, or never will be). ``mask`` is what constrains its
    reply, if anything does.

    A resumed row has replayed what was emitted through its detokenizer and stop matcher, so both hold back
    what they held back then. Raises one of DETOKENIZER_ERRORS when that has no text.
    """

    __slots__ = (
        "asked",
        "cached",
        "caches",
        "completed",
        "convert_at",
        "decode_started_s",
        "ended",
        "mask",
        "matcher",
        "output",
        "prefill_started_s",
        "prefilled",
        "prompt",
        "publish_at",
        "request",
        "sampler",
        "text",
    )

    def __init__(self, request: RowRequest, prompt: list[int], text: Detokenizer) -> None:
        emitted = request.emitted
        self.request = request
        self.prompt = prompt
        self.asked = len(prompt) - len(emitted)
        self.text = text
        self.caches: list[Cache] = []
        self.matcher = StopMatcher(request.stop)
        for token in emitted:
            self.matcher.add(text.add(token))
        self.sampler = RowSampler(request.sampling, prompt[: self.asked], emitted)
        self.cached = 0 if request.prefix is None else request.prefix.length
        self.prefilled = self.cached
        self.publish_at: frozenset[int] = frozenset()
        self.convert_at: int | None = None
        self.mask: RowMask | None = None
        self.output: list[int] = []
        self.completed = len(emitted)
        self.ended = False
        self.prefill_started_s: float | None = None
        self.decode_started_s: float | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def remaining(self) -> int:
        """Tokens of ``prompt`` still to prefill (the last one is decoded, not prefilled)."""
        return len(self.prompt) - 1 - self.prefilled

    @property
    def to_stop(self) -> int:
        """Tokens of ``prompt`` until the next offset at which a prefill pass has to stop."""
        stops = (*self.publish_at, self.convert_at or 0)
        ahead = [offset for offset in stops if self.prefilled < offset < len(self.prompt)]
        return min(ahead, default=len(self.prompt) - 1) - self.prefilled

    def fed(self, count: int) -> TokenIds:
        """Return the first ``count`` tokens that were fed to the model: prompt, then output."""
        assert count <= len(self.prompt) + len(self.output), f"row {self.id} was fed tokens it never had"
        return TokenIds.of((self.prompt + self.output)[:count])

    @property
    def complete(self) -> bool:
        """Whether what an earlier lane emitted was all: nothing is left to decode."""
        return self.matcher.matched or 0 < self.completed >= self.request.max_tokens

    @property
    def ends_next(self) -> bool:
        """Whether its next token is its last for certain, so that no step after it is needed."""
        return self.completed + 1 >= self.request.max_tokens

    def progress(self) -> Prefilled:
        """Say how much of the prompt is in the cache (all of it once only the first input is left)."""
        done = len(self.prompt) if self.remaining == 0 else self.prefilled
        return Prefilled(self.id, done, len(self.prompt))

    def accept(
        self, token: int, logprobs: tuple[TokenLogprob, ...], end_tokens: frozenset[int], now_s: float
    ) -> list[Delta | Finished]:
        """Take one decoded token and return its events; ``ended`` is set with the terminal one.

        An end token (the model's or the request's own) closes the row, is not text and is not counted:
        ``completion_tokens`` is the number of tokens in the row's deltas. A token that completes a stop
        string is counted. Raises one of DETOKENIZER_ERRORS, chained by nobody, when the token has no text.
        """
        self.output.append(token)
        if token in end_tokens or token in self.request.stop_tokens:
            return [self._finished("stop", now_s)]
        self.completed += 1
        delta = Delta(self.id, self.matcher.add(self.text.add(token)), (token,), logprobs)
        if self.matcher.matched:
            return [delta, self._finished("stop", now_s)]
        if self.completed >= self.request.max_tokens:
            return [delta, self._finished("length", now_s)]
        return [delta]

    def finish(self, now_s: float) -> Finished:
        """End a row that decodes nothing: it was complete, or ``max_tokens`` is 0."""
        return self._finished("length", now_s)

    def cancelled(self) -> Cancelled:
        """End the row as cancelled."""
        self._end()
        return Cancelled(self.id)

    def failed(self, code: str, message: str, *, shown: bool = False) -> Failed:
        """End the row as failed; ``shown`` if the message is for the client."""
        self._end()
        return Failed(self.id, code, message, shown)

    @property
    def astray(self) -> str | None:
        """Why its constraint lets it take no further token, if so."""
        if self.mask is None or len(self.output) < self.mask.failed_at:
            return None
        return self.mask.failure

    def _finished(self, reason: FinishReason, now_s: float) -> Finished:
        rest = "" if self.matcher.matched else self.matcher.add(self.text.flush())
        if self.matcher.matched:
            reason = "stop"
        else:
            rest += self.matcher.flush()
        began = now_s if self.prefill_started_s is None else self.prefill_started_s
        decoding = now_s if self.decode_started_s is None else self.decode_started_s
        self._end()
        return Finished(
            self.id,
            reason,
            rest,
            prompt_tokens=self.asked,
            completion_tokens=self.completed,
            prefill_ms=(decoding - began) * 1e3,
            decode_ms=(now_s - decoding) * 1e3,
            cached_tokens=min(self.cached, self.asked),
            stopped_by=self.matcher.stopped_by,
        )

    def _end(self) -> None:
        assert not self.ended, f"row {self.id} ended twice"
        self.ended = True
        self.caches = []

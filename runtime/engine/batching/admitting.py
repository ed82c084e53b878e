"""Which requests a lane takes: each becomes a row, or is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import ConstraintFailed
from ..port import Failed
from .masking import GUIDE_ERRORS, mask_of
from .rows import DETOKENIZER_ERRORS, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..port import Detokenizer, RowRequest
    from .masking import RowMask

MAX_TOP_LOGPROBS: Final = 20


class Refusal(Exception):
    """The row cannot be decoded. Caught by the backend, which turns it into ``Failed``."""

    def __init__(self, code: str, message: str, *, shown: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.shown = shown

    def event(self, row_id: str) -> Failed:
        """Return the terminal event of the row that was refused."""
        return Failed(row_id, self.code, str(self), self.shown)


def admit(
    request: RowRequest,
    vocab_size: int,
    detokenizer: Callable[[], Detokenizer],
    end_tokens: frozenset[int] = frozenset(),
) -> Row:
    """Return a row for ``request``, or raise Refusal saying which of its values cannot be decoded."""
    if not len(request.tokens):
        raise Refusal("empty_prompt", "a prompt needs at least one token")
    prompt = [int(token) for token in request.tokens]
    prompt.extend(request.emitted)
    _check_tokens(prompt, vocab_size)
    _check_request(request, vocab_size)
    _check_prefix(request, prompt)
    try:
        row = Row(request, prompt, detokenizer())
    except DETOKENIZER_ERRORS as error:
        raise Refusal("detokenizer_error", f"no detokenizer, or no text: {error}") from error
    if not row.complete:
        row.mask = _mask(request, end_tokens)
    return row


def _mask(request: RowRequest, end_tokens: frozenset[int]) -> RowMask | None:
    try:
        return mask_of(request, end_tokens)
    except GUIDE_ERRORS as error:
        raise Refusal(ConstraintFailed.code, str(error) or type(error).__name__, shown=True) from error


def _check_tokens(prompt: Sequence[int], vocab_size: int) -> None:
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise Refusal("invalid_token", f"token id {wrong} is outside the vocabulary of {vocab_size}")


def _check_prefix(request: RowRequest, prompt: Sequence[int]) -> None:
    """Refuse state that is not this prompt's: the one mistake that would give wrong answers in silence."""
    if request.prefix is None:
        return
    spec, length = request.prefix.checkpoint.spec, request.prefix.length
    if not 0 < length < len(prompt) or not spec.serves(length) or spec.namespace != request.namespace:
        raise Refusal("invalid_prefix", f"a prefix of {length} tokens cannot serve {len(prompt)} tokens")
    if spec.tokens[:length].tolist() != list(prompt[:length]):
        raise Refusal("invalid_prefix", "the borrowed state belongs to other tokens")


def _check_request(request: RowRequest, vocab_size: int) -> None:
    if request.max_tokens < 0:
        raise Refusal("invalid_max_tokens", f"max_tokens is {request.max_tokens}, expected 0 or more")
    top = request.top_logprobs
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise Refusal("invalid_top_logprobs", f"top_logprobs is {top}, expected 0 to {MAX_TOP_LOGPROBS}")
    if request.sampling.repetition_penalty <= 0:
        raise Refusal("invalid_sampling", "repetition_penalty must be greater than 0")
    for token in request.sampling.logit_bias:
        if not 0 <= token < vocab_size:
            raise Refusal("invalid_logit_bias", f"token id {token} is outside the vocabulary of {vocab_size}")

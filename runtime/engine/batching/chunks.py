"""How many prompt tokens a prefill pass may take: pure arithmetic on what earlier passes took.

A pass of ``n`` tokens behind ``c`` others takes about ``n * (each + attention * (c + n/2))`` seconds: every
token goes through the weights, and attends to all before it. Both factors are fitted to the passes seen, so
chunks shrink as a prompt grows and the time stays. What a call costs at any size is not a third factor: at
the sizes in use it is part of ``each``, and the next size corrects the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALLEST_CHUNK: Final = 24
"""Every call reads all weights: on a CPU 16 tokens took 0.16 s and twice as many 0.2 s."""
FIRST_CHUNK: Final = 32
"""Tokens of the first pass that streams wait for: nothing is known of the machine yet."""
FIRST_FULL_CHUNK: Final = 128
FULL_PASS_S: Final = 0.7
"""The longest pass while nothing decodes: who arrives during it waits for its end."""

_FADING: Final = 0.95
_RISE: Final = 0.5
_FALL: Final = 0.25
_ODD: Final = 2.0
_EARLY: Final = 4
_GROWTH: Final = 2
_STRETCH: Final = 1.25
"""A pass that brings a prompt to its end may take so much longer: another pass would cost more."""
_STRETCHED_GAP: Final = 1.4
"""Where streams wait, so much longer than decode_gap: a short prompt is done in one pass."""
_EVEN: Final = 16
"""Chunks of eight times this and more are multiples of it: matrix kernels waste less on those."""
_NARROW: Final = 256
"""Contexts no further apart than this say little about attention: noise is as large."""


class PassCost:
    """Seconds that prefill passes take here, learnt from passes.

    Two speeds: the shape (``each`` and ``attention``) follows the last twenty passes or so, the level of the
    whole only the last few, faster up than down. A pass counts for at most twice what was expected of it, so
    one odd pass decides nothing and a machine that has become slower is followed within a few passes. The
    first few may have waited for kernels to be compiled: a much faster one among them starts the count anew.
    """

    def __init__(self) -> None:
        self._passes = 0
        self._each = self._attention = 0.0
        self._level = 1.0
        self._forget()

    @property
    def known(self) -> bool:
        """Whether a pass was recorded."""
        return self._passes > 0

    def seconds(self, tokens: int, context: float) -> float:
        """Return what ``tokens`` behind ``context`` others will take."""
        return tokens * self._a_token(context + tokens / 2)

    def tokens_within(self, seconds: float, context: float) -> int:
        """Return how many tokens behind ``context`` others fit into ``seconds``."""
        linear, curve = self._a_token(context), self._level * self._attention / 2
        if seconds <= 0:
            return 0
        return int(2 * seconds / (linear + (linear * linear + 4 * curve * seconds) ** 0.5))

    def record(self, tokens: int, context: float, seconds: float) -> None:
        """Learn from a pass of ``tokens`` whose middle was at ``context``."""
        a_token = expected = seconds / tokens
        if self._passes:
            expected = self._a_token(context)
            if self._passes < _EARLY and a_token < expected / _ODD:
                self._forget()
                expected = a_token
            a_token = min(max(a_token, expected / _ODD), expected * _ODD)
        self._fit(float(tokens), context, a_token)
        expected += (_RISE if a_token > expected else _FALL) * (a_token - expected)
        self._level = expected / (self._each + self._attention * context)
        self._passes += 1

    def _forget(self) -> None:
        self._weight = self._context = self._seconds = self._squares = self._products = 0.0

    def _a_token(self, context: float) -> float:
        return self._level * (self._each + self._attention * context)

    def _fit(self, weight: float, context: float, a_token: float) -> None:
        """Weighted least squares of seconds a token over context, old passes fading; no factor below 0."""
        self._weight = _FADING * self._weight + weight
        self._context = _FADING * self._context + weight * context
        self._seconds = _FADING * self._seconds + weight * a_token
        self._squares = _FADING * self._squares + weight * context * context
        self._products = _FADING * self._products + weight * context * a_token
        context_mean, mean = self._context / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - context_mean**2 + _NARROW**2
        slope = (self._products / self._weight - context_mean * mean) / spread
        # At least a tenth of a token's time is not attention: a fit to noise must not make it free.
        self._attention = min(max(slope, 0.0), 0.9 * mean / context_mean)
        self._each = mean - self._attention * context_mean


class PassBudget:
    """What one pass may still take: tokens, and seconds where their cost is known.

    ``stretched``: the seconds that it may take if it brings its first row's prompt to its end.
    """

    def __init__(
        self, tokens: int, seconds: float = 0.0, cost: PassCost | None = None, stretched: float = 0.0
    ) -> None:
        self._tokens = tokens
        self._seconds = seconds
        self._cost = cost
        self._stretched = stretched
        self._granted = False

    def grant(self, context: int, wanted: int) -> int:
        """Return how many of ``wanted`` tokens behind ``context`` others a row may prefill, and take them.

        The first row gets SMALLEST_CHUNK at least, whatever that takes: every pass gets somewhere.
        """
        fits = self._tokens
        if self._cost is not None:
            within = self._cost.tokens_within(self._seconds, context)
            if within >= 8 * _EVEN:
                within -= within % _EVEN
            if not self._granted:
                rest = self._cost.tokens_within(self._stretched, context)
                within = wanted if wanted <= rest else max(within, SMALLEST_CHUNK)
            fits = min(fits, within)
        count = min(wanted, fits)
        self._tokens -= count
        if self._cost is not None:
            self._seconds -= self._cost.seconds(count, context)
        self._granted = self._granted or count > 0
        return count


class ChunkSizer:
    """Says what the next prefill pass may take. Passes are at most ``limit`` tokens.

    While rows decode, a pass and a step together fit into ``gap_s``, or into two fifths more if that ends a
    prompt; where steps are slow, a pass gets half a step's time in any case. With nothing decoding a pass
    takes FULL_PASS_S at most, since whoever arrives waits for it; on a machine that does ``limit`` tokens in
    less, all passes are full. Sizes at most double from one to the next, so that what is not known yet is
    found out in small steps.
    """

    def __init__(self, limit: int, gap_s: float) -> None:
        self.limit = limit
        self._gap_s = gap_s
        self._cost = PassCost()
        self._largest = 0

    def budget(self, *, decoding: bool, step_s: float) -> PassBudget:
        """Return the budget of the next pass. ``step_s``: what a decode step takes without a pass."""
        first = FIRST_CHUNK if decoding else FIRST_FULL_CHUNK
        tokens = min(max(first, _GROWTH * self._largest), self.limit)
        if not self._cost.known:
            return PassBudget(min(first, self.limit))
        if not decoding:
            return PassBudget(tokens, FULL_PASS_S, self._cost, _STRETCH * FULL_PASS_S)
        seconds = max(self._gap_s - step_s, step_s / 2)
        stretched = max(_STRETCH * seconds, _STRETCHED_GAP * self._gap_s - step_s)
        return PassBudget(tokens, seconds, self._cost, stretched)

    def worth_holding(self, prompts: Sequence[tuple[int, int]], step_s: float, limit_s: float) -> bool:
        """Whether rows that could decode should wait for these prompts, each (context, tokens left).

        So it is where the prompts are done in ``limit_s``, and in less than twice what the steps would take
        that would otherwise go between their passes: one for each pass, and one for each row's joining.
        """
        if not self._cost.known or not step_s:
            return False
        seconds, steps = 0.0, len(prompts)
        for context, left in prompts:
            seconds += self._cost.seconds(left, context)
            beside = max(self._cost.tokens_within(self._gap_s - step_s, context), SMALLEST_CHUNK)
            steps += -(-left // beside)
        return seconds <= min(limit_s, 2 * steps * step_s)

    def record(self, tokens: int, context: float, seconds: float) -> None:
        """Learn from a pass. Tiny ones say little about a token."""
        if tokens < SMALLEST_CHUNK or seconds <= 0:
            return
        self._cost.record(tokens, context, seconds)
        self._largest = max(self._largest, tokens)

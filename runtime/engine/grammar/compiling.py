"""From a Constraint to a Guide, by llguidance, for one loaded model."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits

from ..errors import ConstraintError
from .guides import MatcherGuide
from .limits import STACK_BYTES, TooLarge
from .sources import BadSource, grammar_of
from .tools import tool_grammars
from .vocabulary import UnusableTokenizer, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenizers import Tokenizer

    from ..prompt import Constraint, Guide, ReplyFormat

KEPT_GRAMMARS: Final = 64
_MESSAGE_CHARACTERS: Final = 300
_NAMES: Final = {
    "json_object": "JSON object",
    "json_schema": "JSON Schema",
    "regex": "regular expression",
    "grammar": "grammar",
    "choice": "choice",
    "tools": "schema of a tool's parameters",
}
_LIMITS: Final = LLParserLimits(initial_lexer_fuel=200_000, verbose_errors=False)
"""At most a fifth of a second for the lexer; errors without the client's grammar or text in them."""

_SOURCE_ERRORS: Final = (BadSource, TooLarge, ValueError, TypeError, RecursionError)
"""What a source leads to; the last three out of texts that are no Unicode and values that nest too deeply."""

_stack_size = threading.Lock()


class Grammars:
    """Compiles constraints for a model and keeps the last KEPT_GRAMMARS. Any thread.

    ``tokenizer`` is the model's Rust tokenizer, None where it has none: then nothing can be constrained.
    It is made ready for grammars by the first call, once, in a fraction of a second.
    """

    def __init__(self, tokenizer: Tokenizer | None, end_tokens: Iterable[int], reply: ReplyFormat) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = frozenset(end_tokens)
        self._reply = reply
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    def compile(self, constraint: Constraint, *, in_reasoning: bool) -> Guide:
        """Return the guide of a reply that begins inside the model's reasoning, or does not.

        Raises ConstraintError, with a message for the client, over a source that is wrong, too large, uses
        what llguidance does not know, or allows no reply at all, and when this model's tokenizer cannot be
        used.
        """
        try:
            vocabulary = self._ready()
            matcher = self._matcher(constraint, vocabulary)
        except UnusableTokenizer as error:
            raise ConstraintError(str(error), constraint.param) from error
        except _SOURCE_ERRORS as error:
            message = f"the {_NAMES[constraint.kind]} cannot be used: {_short(str(error))}"
            raise ConstraintError(message, constraint.param) from error
        return MatcherGuide(matcher, vocabulary, self._reply.reasoning, in_reasoning=in_reasoning)

    def _ready(self) -> Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                if self._tokenizer is None:
                    raise UnusableTokenizer(
                        "replies of this model cannot be constrained: its tokenizer is none of the usual kind"
                    )
                self._vocabulary = Vocabulary(self._tokenizer, self._end_tokens)
            return self._vocabulary

    def _matcher(self, constraint: Constraint, vocabulary: Vocabulary) -> LLMatcher:
        key = json.dumps(
            [constraint.kind, constraint.source, constraint.tools, constraint.many], default=dict
        )
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        matcher = self._first_that_compiles(constraint, vocabulary)
        with self._lock:
            self._kept[key] = matcher
            if len(self._kept) > KEPT_GRAMMARS:
                self._kept.popitem(last=False)
        return matcher

    def _first_that_compiles(self, constraint: Constraint, vocabulary: Vocabulary) -> LLMatcher:
        if constraint.kind == "tools":
            grammars = tool_grammars(constraint, self._reply.tools, vocabulary)
        else:
            grammars = [grammar_of(constraint)]
        reason = ""
        for grammar in grammars:
            matcher = _compiled(grammar, vocabulary)
            if not matcher.is_error():
                return matcher
            reason = reason or matcher.get_error()
        raise BadSource(reason)


def _compiled(grammar: str, vocabulary: Vocabulary) -> LLMatcher:
    """Compile on a stack of its own, see limits.py; with the first mask, which may be the dearest."""
    grammar.encode()  # raises here what the thread would raise out of anybody's sight
    made: list[LLMatcher] = []

    def make() -> None:
        matcher = LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        made.append(matcher)

    with _stack_size:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=make, name="grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if not made:
        raise BadSource("compiling it failed")
    return made[0]


def _short(reason: str) -> str:
    """Return the heart of an error of llguidance, without the rendering of the grammar that follows."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if lines and lines[0].startswith("NoExtension"):
        return "no reply can match it"
    heart = "; ".join(line for line in lines if "|" not in line[:8] and not set(line) <= {"^", " "})
    return heart if len(heart) <= _MESSAGE_CHARACTERS else f"{heart[: _MESSAGE_CHARACTERS - 1]}…"

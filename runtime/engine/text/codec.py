"""Text to token ids and back for one loaded model (``port.TextCodec``)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ....storage.tokens import TokenIds
from ..errors import PromptError, PromptTooLong
from ..grammar.compiling import Grammars
from ..prompt import Conversation, GivenIds, PlainText, RenderedPrompt
from .controls import lone_surrogate
from .detokenize import BytesDetokenizer, WindowDetokenizer
from .history import TokenHistory
from .marked import MarkedEncoder
from .markers import MarkupDetokenizer, markup_of
from .prompts import PromptEncoder
from .reply_format import controls_of, reply_format
from .seen import utf8
from .templates import ChatTemplate
from .tokenizing import Tokenizing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..port import Detokenizer
    from ..prompt import Constraint, Prompt, ReplyFormat
    from .history import HistoryFigures

_MARK_BYTES = 3


class HfTextCodec:
    """A Hugging Face tokenizer with its chat template, usable from several threads at once.

    ``end_tokens`` are the ids that end a reply; ``reply`` is how the model marks up replies. Byte-level
    tokenizers detokenise by a table made here once; others through windowed decoding, which costs more per
    token and gives the same text. With a ``context_length`` a prompt that cannot fit is refused by its size,
    where the tokenizer tells how many bytes a token may stand for: encoding 5 MB takes ten seconds.
    """

    def __init__(
        self, wrapper: TokenizerWrapper, end_tokens: Iterable[int] = (), *, context_length: int | None = None
    ) -> None:
        self._wrapper = wrapper
        self._tokenizing = Tokenizing(wrapper._tokenizer)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownArgumentType]
        self.end_tokens: frozenset[int] = frozenset(end_tokens) | cast("set[int]", wrapper.eos_token_ids)
        self.reply: ReplyFormat = reply_format(wrapper)
        added = self._tokenizing.added
        self._markup = markup_of(added, self.reply, self.end_tokens)
        self._controls = controls_of(wrapper, added, self.reply)
        self._template = ChatTemplate(wrapper, self._controls, self.reply)
        encoder = MarkedEncoder(self._tokenizing, self._controls)
        self._prompts = PromptEncoder(encoder, self._history(), frozenset(added))
        self._grammars = Grammars(self._tokenizing.backend, self.end_tokens, self.reply)
        self._context_length = context_length

    @property
    def vocab_size(self) -> int:
        """How many ids the tokenizer knows; a model's table may be larger."""
        return len(self._wrapper)

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        """Return the ids of a prompt, ready for the reply, with its boundary and the compiled constraint.

        - A conversation goes through the chat template. Ids of earlier replies are kept as they were sampled,
          where the text begins with a remembered one. Control tokens are the template's alone: one that the
          client typed is text (``client_text.py``). The boundary is found by rendering two possible next
          turns; a template that refuses those gives 0.
        - Plain text is encoded as the tokenizer encodes a text by itself: with the special tokens that it
          puts around one (a BOS by convention, unless the text begins with it), and spellings of control
          tokens are control tokens, so that a client can write out a template by hand.
        - Given ids are taken as they are, if the vocabulary has them.

        Raises TemplateError, ConstraintError, PromptError (nothing to go on from, an unknown id, text that is
        not Unicode), PromptTooLong.
        """
        match prompt:
            case Conversation():
                rendered = self._conversation(prompt)
            case PlainText():
                rendered = RenderedPrompt(TokenIds.of(self._plain(prompt.text)))
            case GivenIds():
                rendered = RenderedPrompt(self._known(prompt.tokens))
        if not rendered.tokens:
            raise PromptError("the prompt is empty: the model needs one token at least to go on from")
        if constraint is None:
            return rendered
        guide = self._grammars.compile(constraint, in_reasoning=rendered.in_reasoning)
        return replace(rendered, guide=guide)

    def remember(self, tokens: TokenIds) -> None:
        """Note the ids of a prompt with its reply as the model saw them. The next render does the work."""
        self._prompts.remember(tokens)

    def seed_history(self, sequences: Sequence[TokenIds]) -> None:
        """Remember what files know of earlier, the most useful last. May take seconds: not on a loop."""
        self._prompts.seed(sequences)

    def history_figures(self) -> HistoryFigures | None:
        """Return what is remembered; None for a tokenizer that is not byte-level, which remembers nothing."""
        return self._prompts.figures()

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of ``text`` alone, without special tokens added.

        Text that spells a special token becomes that token.
        """
        return self._tokenizing.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the whole text of ``tokens``; of special tokens only those that mark up replies."""
        if self._markup is None:
            return self._tokenizing.decode(tokens)
        detokenizer = self.detokenizer()
        return "".join([*map(detokenizer.add, tokens), detokenizer.flush()])

    def detokenizer(self) -> Detokenizer:
        """Return a fresh streaming detokenizer whose pieces join to ``decode`` of all tokens."""
        table = self._tokenizing.table
        text = WindowDetokenizer(self._tokenizing.decode) if table is None else BytesDetokenizer(table)
        return text if self._markup is None else MarkupDetokenizer(text, self._markup)

    def _conversation(self, conversation: Conversation) -> RenderedPrompt:
        rendered = self._template.render(conversation)
        self._check_size(rendered.text)
        prompt = self._prompts.prompt(rendered.text, rendered.following)
        return replace(prompt, in_reasoning=self._in_reasoning(rendered.text))

    def _in_reasoning(self, text: str) -> bool:
        """Whether a marked text ends inside reasoning, which was opened behind the last turn's end."""
        if self.reply.reasoning is None:
            return False
        start, end = map(self._controls.exchange, self.reply.reasoning)
        closing = filter(None, map(self._controls.mark_of, self.end_tokens))
        last = max(map(text.rfind, closing), default=-1)
        return text.rfind(start, last + 1) > text.rfind(end, last + 1)

    def _plain(self, text: str) -> Sequence[int]:
        place = lone_surrogate(text)
        if place is not None:
            raise PromptError(f"character {place} of the prompt is a lone surrogate, which is no character")
        self._check_size(text)
        bos = cast("str | None", self._wrapper.bos_token)  # pyright: ignore[reportUnknownMemberType]
        return self._tokenizing.encode(text, with_special=bos is None or not text.startswith(bos))

    def _known(self, tokens: Sequence[int]) -> TokenIds:
        limit = self._tokenizing.vocab_size
        for place, token in enumerate(tokens):
            if not 0 <= token < limit:
                raise PromptError(
                    f"token {place} of the prompt is {token}; the model's vocabulary is 0 to {limit - 1}"
                )
        return TokenIds.of(tokens)

    def _check_size(self, text: str) -> None:
        longest = self._tokenizing.longest_bytes
        if self._context_length is None or longest is None:
            return
        least = -(-len(utf8(text)) // max(longest, _MARK_BYTES))
        if least > self._context_length:
            raise PromptTooLong(
                f"the prompt has {least} tokens at least; the model's context holds {self._context_length}, "
                "reply included"
            )

    def _history(self) -> TokenHistory | None:
        """Return the memory for generated ids, where bytes tell what they spell: marks for control tokens."""
        if self._tokenizing.table is None:
            return None
        pieces = list(self._tokenizing.table)
        for token, added in self._tokenizing.added.items():
            pieces[token] = utf8(self._controls.mark_of(token) or added.content)
        return TokenHistory(pieces, self._tokenizing.added)

"""Text to token ids and back for one loaded model (``port.TextCodec``)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol, cast

import jinja2
import numpy as np
from transformers import PreTrainedTokenizerFast

from ....storage.tokens import TokenIds
from ..errors import ConstraintError, PromptTooLong, TemplateError
from ..prompt import Conversation, GivenIds, PlainText, RenderedPrompt
from .detokenize import BytesDetokenizer, TokenBytes, WindowDetokenizer, byte_level_table
from .history import TokenHistory
from .prompts import PromptEncoder
from .turns import next_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import tokenizers
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..port import Detokenizer
    from ..prompt import Constraint, Prompt
    from .history import HistoryFigures
    from .prompts import Offsets

_MESSAGE_CHARACTERS = 200
_QUICK_CHARACTERS: Final = 2_000
"""A text up to this long is encoded at once, with the interpreter's lock held: two milliseconds or so."""
_OURS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "truncation",
    }
)
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
)


class _Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...


class HfTextCodec:
    """A Hugging Face tokenizer with its chat template, usable from several threads at once.

    ``end_tokens`` are the ids that end a reply. Byte-level tokenizers detokenise by a table made here
    once; others through windowed decoding, which costs more per token and gives the same text. With a
    ``context_length`` a prompt that cannot fit is refused by its size, where the tokenizer tells how many
    bytes a token may stand for: encoding 5 MB takes ten seconds.
    """

    def __init__(
        self, wrapper: TokenizerWrapper, end_tokens: Iterable[int] = (), *, context_length: int | None = None
    ) -> None:
        self._wrapper = wrapper
        self._tokenizer = cast("_Tokenizer", wrapper._tokenizer)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        self._lock = threading.Lock()
        self._backend = _plain_backend(self._tokenizer)
        self._table: TokenBytes | None = None if self._backend is None else byte_level_table(self._backend)
        self._prompts = PromptEncoder(self, *self._history())
        self._context_length = context_length
        self._longest_bytes = _longest_bytes(self._backend, self._table)
        self.end_tokens: frozenset[int] = frozenset(end_tokens) | cast("set[int]", wrapper.eos_token_ids)

    @property
    def vocab_size(self) -> int:
        """How many ids the tokenizer knows; a model's table may be larger."""
        return len(self._wrapper)

    def render_chat(
        self, messages: Sequence[Mapping[str, object]], template_kwargs: Mapping[str, object]
    ) -> RenderedPrompt:
        """Return the prompt ids of a conversation, ready for the assistant's reply, with their boundary.

        Ids of earlier replies are kept as they were sampled, where the text begins with a remembered one. The
        boundary is found by rendering two possible next turns; a template that refuses those gives 0. Raises
        TemplateError when the model has no template, its template refuses the messages, or
        ``template_kwargs`` names something that is not the client's to set; PromptTooLong.
        """
        if not self._wrapper.has_chat_template:
            raise TemplateError("this model has no chat template; use text completion")
        if taken := sorted(_OURS & template_kwargs.keys()):
            raise TemplateError(f"chat_template_kwargs may not set {', '.join(taken)}")
        try:
            text = self._render(messages, template_kwargs)
        except _TEMPLATE_FAILURES as error:
            raise TemplateError(f"the chat template refused the messages: {_short(error)}") from error
        self._check_size(text)
        return self._prompts.prompt(text, next_turns(lambda more: self._try(more, template_kwargs), messages))

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        """Return the ids of a prompt, ready for the reply."""
        if constraint is not None:
            raise ConstraintError("replies cannot be constrained yet", constraint.param)
        match prompt:
            case Conversation():
                return self.render_chat(prompt.messages, prompt.template_kwargs)
            case PlainText():
                self._check_size(prompt.text)
                return RenderedPrompt(TokenIds.of(self.encode(prompt.text)))
            case GivenIds():
                return RenderedPrompt(TokenIds.of(prompt.tokens))

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

        Text that spells a special token becomes that token, as a rendered template needs.
        """
        if self._backend is not None:
            return _encoding(self._backend, text).ids
        with self._lock:  # tokenizers in Python keep state while they work
            return self._tokenizer.encode(text, add_special_tokens=False)

    def encode_with_ends(self, text: str) -> tuple[Sequence[int], Offsets | None]:
        """Return the ids of ``text`` and where each ends in it; None for a tokenizer in Python."""
        if self._backend is None:
            return self.encode(text), None
        encoding = _encoding(self._backend, text)
        return encoding.ids, np.array([end for _, end in encoding.offsets], dtype=np.int64)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the whole text of ``tokens``, special tokens left out."""
        if self._backend is not None:
            return self._backend.decode(tokens, skip_special_tokens=True)
        with self._lock:
            return self._tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )

    def detokenizer(self) -> Detokenizer:
        """Return a fresh streaming detokenizer whose pieces join to ``decode`` of all tokens."""
        if self._table is not None:
            return BytesDetokenizer(self._table)
        return WindowDetokenizer(self.decode)

    def _check_size(self, text: str) -> None:
        if self._context_length is None or self._longest_bytes is None:
            return
        least = -(-len(text.encode()) // self._longest_bytes)
        if least > self._context_length:
            raise PromptTooLong(
                f"the prompt has {least} tokens at least; the model's context holds {self._context_length}, "
                "reply included"
            )

    def _render(self, messages: Sequence[Mapping[str, object]], kwargs: Mapping[str, object]) -> str:
        render = cast("Callable[..., str]", self._wrapper.apply_chat_template)
        conversation = [dict(message) for message in messages]
        return render(conversation, tokenize=False, add_generation_prompt=True, **kwargs)

    def _try(self, messages: Sequence[Mapping[str, object]], kwargs: Mapping[str, object]) -> str | None:
        try:
            return self._render(messages, kwargs)
        except _TEMPLATE_FAILURES:
            return None

    def _history(self) -> tuple[TokenHistory | None, frozenset[int]]:
        """Return the memory for generated ids, where bytes tell what they spell, and the added ids."""
        if self._backend is None:
            return None, frozenset()
        spelled = {index: token.content for index, token in self._backend.get_added_tokens_decoder().items()}
        if self._table is None:
            return None, frozenset(spelled)
        pieces = list(self._table)
        for index, text in spelled.items():
            pieces[index] = text.encode()
        return TokenHistory(pieces, spelled), frozenset(spelled)


def _longest_bytes(backend: tokenizers.Tokenizer | None, table: TokenBytes | None) -> int | None:
    """Return the most bytes of text that one token may stand for; None where that is not bounded.

    A normalizer may shorten a text, and an added token may swallow the spaces beside it.
    """
    if backend is None or table is None or backend.normalizer is not None:
        return None
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    return max(*map(len, table), *(len(token.content.encode()) for token in added), 1)


def _encoding(backend: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    """Encode ``text`` while other threads run.

    Only the tokenizers' call for batches lets them: ``encode`` held the interpreter's lock, and with it the
    event loop, for 0.24 s over 34,000 tokens and for 10 s over 5 MB.
    """
    if len(text) <= _QUICK_CHARACTERS:
        return backend.encode(text, add_special_tokens=False)
    return backend.encode_batch([text], add_special_tokens=False)[0]


def _plain_backend(tokenizer: object) -> tokenizers.Tokenizer | None:
    """Return the Rust tokenizer behind ``tokenizer`` where calling it directly means the same.

    It does when the class adds nothing of its own to encoding or decoding, and no truncation or padding
    is set. The Rust side is safe to share; the Python side sets its state on every call.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    kind = type(tokenizer)
    names = ("encode", "_encode_plus", "decode", "_decode")
    if any(getattr(kind, name, None) is not getattr(PreTrainedTokenizerFast, name, None) for name in names):
        return None
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return backend


def _short(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[: _MESSAGE_CHARACTERS - 1]}…"

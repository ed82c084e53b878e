"""The seam between a lane and the engine that decodes for it: plain data and three protocols.

Nothing here imports MLX, so actors, the HTTP layer, fakes and tests use it freely. Every object is
immutable and may cross threads; the protocols say on which thread each method runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from .prompt import PLAIN_REPLIES, ReplyFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...storage.tokens import TokenIds
    from .checkpoint import Checkpoint, Prefix
    from .prompt import Constraint, Guide, Prompt, RenderedPrompt

FinishReason: TypeAlias = Literal["stop", "length"]
Phase: TypeAlias = Literal["prefill", "join", "decode", "extract", "publish", "step"]
"""What a lane was doing: ``step`` where that is not known more exactly."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one row picks its next token. The defaults are greedy.

    ``temperature`` 0 means greedy whatever the other filters say. ``top_p`` 1, ``top_k`` 0 and
    ``min_p`` 0 switch those filters off. Penalties at 0 (repetition at 1) cost nothing. With a
    ``seed`` the row's choices depend on the seed and its own logits alone, whatever shares the batch.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])


GREEDY: Final = Sampling()


@dataclass(frozen=True, slots=True)
class RowRequest:
    """One request as a lane sees it.

    ``tokens`` is the whole prompt (at least one id). ``stop`` holds strings; none of them, nor text
    behind them, is ever emitted; ``stop_tokens`` end the row as the model's end tokens do.
    ``top_logprobs`` is None for no logprobs, else 0 to 20 alternatives.

    ``emitted`` are the tokens that an earlier lane had emitted for this request before it was lost. The row
    goes on behind them exactly as it would have: state, position of chance, penalties, held-back text, stop
    strings and ``max_tokens`` all count them, no event repeats them, and ``Finished`` counts them as
    completion. A row that they complete already ends at once.

    ``prefix`` is state to start from, at most all but the last token of prompt and ``emitted``. With
    ``publish`` the row publishes checkpoints under ``namespace``: one at ``boundary`` tokens (the part of the
    prompt that later turns will render again; 0 for none) if that much is prefilled here, and one at its end.

    With a ``guide`` every token of the row, end tokens included, is one that the guide allows.
    """

    id: str
    tokens: Sequence[int]
    max_tokens: int
    sampling: Sampling = GREEDY
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    prefix: Prefix | None = None
    boundary: int = 0
    publish: bool = False
    namespace: str = ""
    emitted: tuple[int, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    guide: Guide | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one emitted token and of its best alternatives, best first."""

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilled:
    """``done`` of ``total`` prompt tokens are in the row's cache. Sent after every prefill chunk."""

    id: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly decoded tokens of a row and the text that they settled.

    ``text`` may be empty while UTF-8 or a possible stop string is held back; ``tokens`` never is.
    """

    id: str
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """State that others may start from: at the boundary, or at the row's end just before ``Finished``.

    Its tokens are exactly those that were fed to the model. Failed and cancelled rows publish at their
    boundary at most. ``provisional``: the row goes on, and what it publishes at its end may supersede this.
    """

    id: str
    checkpoint: Checkpoint
    provisional: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The row ended by itself and has left the batch. Terminal. ``text`` is what was still held back.

    ``stopped_by`` is the stop string that ended it, if one did.
    """

    id: str
    reason: FinishReason
    text: str
    prompt_tokens: int
    completion_tokens: int
    prefill_ms: float
    decode_ms: float
    cached_tokens: int = 0
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The row left the batch because it was cancelled. Terminal."""

    id: str


@dataclass(frozen=True, slots=True)
class Failed:
    """This row alone could not be decoded and has left the batch. Terminal.

    ``shown``: the message is fit for the client; else it is for the log.
    """

    id: str
    code: str
    message: str
    shown: bool = False


RowEvent: TypeAlias = Prefilled | Delta | Published | Finished | Cancelled | Failed
Terminal: TypeAlias = Finished | Cancelled | Failed


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """What a backend did so far. Counters never go backwards while the backend is open.

    ``solo_rows``: rows now that decode by themselves because a layer of theirs cannot share a batch.
    ``failed_publications``: states that could not be kept; their rows ended well all the same.
    """

    rows: int = 0
    prefilling: int = 0
    peak_rows: int = 0
    steps: int = 0
    decoded_tokens: int = 0
    prefilled_tokens: int = 0
    step_ms_p50: float = 0.0
    step_ms_p99: float = 0.0
    decode_tps: float = 0.0
    prefill_tps: float = 0.0
    solo_rows: int = 0
    failed_publications: int = 0


@dataclass(frozen=True, slots=True)
class AtWork:
    """What a backend is doing at the moment and for which rows: the suspects if it fails."""

    phase: Phase
    rows: frozenset[str]


class Detokenizer(Protocol):
    """Turns one row's tokens into text as they come. Not thread-safe; one per row."""

    def add(self, token: int) -> str:
        """Return the text that ``token`` settled, possibly empty; never an incomplete character."""
        ...

    def flush(self) -> str:
        """Return what is still held back; incomplete UTF-8 comes out as U+FFFD."""
        ...


class TextCodec(Protocol):
    """A model's tokenizer and chat template. Any thread; methods may take milliseconds."""

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        """Return the ids of a prompt, ready for the reply, and the constraint compiled.

        Where a conversation's text begins with a sequence that was remembered, its ids are kept. Raises
        TemplateError when the model's template refuses the messages, ConstraintError, PromptError.
        """
        ...

    def remember(self, tokens: TokenIds) -> None:
        """Note the ids of a prompt with its reply as the model saw them. Cheap: work is left for later."""
        ...

    def seed_history(self, sequences: Sequence[TokenIds]) -> None:
        """Remember many sequences at once, the most useful last. May take a second."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of ``text`` alone, without special tokens added."""
        ...

    def detokenizer(self) -> Detokenizer:
        """Return a fresh streaming detokenizer."""
        ...


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes that one row's state takes, capacity and padding left out (REQUIREMENTS C3).

    ``token_bytes`` for every token, ``fixed_bytes`` whatever the length (recurrent layers), and for each of
    ``windows`` (tokens, bytes a token) no more than the window's tokens. A row shorter than ``start`` costs
    what ``before`` says: it is not quantised yet.
    """

    token_bytes: float = 0.0
    fixed_bytes: int = 0
    windows: tuple[tuple[int, float], ...] = ()
    start: int = 0
    before: KvCost | None = None

    def bytes_for(self, tokens: int) -> int:
        """Return the bytes of a row after ``tokens`` tokens."""
        if self.before is not None and tokens < self.start:
            return self.before.bytes_for(tokens)
        capped = sum(min(tokens, window) * each for window, each in self.windows)
        return self.fixed_bytes + round(tokens * self.token_bytes + capped)

    def peak_for(self, tokens: int) -> int:
        """Return the most bytes that a row takes on its way to ``tokens`` tokens, floats included."""
        if self.before is None:
            return self.bytes_for(tokens)
        return max(self.bytes_for(tokens), self.before.bytes_for(min(tokens, max(self.start - 1, 0))))


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the rest of the system may know of a loaded model.

    ``trims``: whether every state of it can be shortened, so that one checkpoint serves all its prefixes.
    ``layers``: how many cache layers it has of each signature, under ``scheme``, and ``scheme_notes`` which
    of them that scheme leaves as they are, and why. ``kv``: what a row's state costs. ``reply``: how it marks
    up its replies.
    """

    id: str
    context_length: int
    vocab_size: int
    dtype: str
    default_temperature: float
    created_s: int
    trims: bool = True
    layers: Mapping[str, int] = field(default_factory=dict[str, int])
    scheme: str = "bf16"
    kv: KvCost = KvCost()
    scheme_notes: tuple[str, ...] = ()
    reply: ReplyFormat = PLAIN_REPLIES


class LaneBackend(Protocol):
    """One running batch over one model. Every method runs on the lane's own pinned thread.

    An exception out of any method is a crash of the lane; trouble with one row is a ``Failed`` event. State
    that cannot be published (no memory, say) costs the row nothing but that.
    """

    def open(self) -> ModelInfo:
        """Load what is needed (weights may be shared with an earlier backend) and warm up nothing."""
        ...

    def insert(self, request: RowRequest) -> None:
        """Queue a row; it joins the batch between steps. Never blocks, never evaluates."""
        ...

    def cancel(self, row_id: str) -> None:
        """Drop a row, waiting, prefilling or decoding; an unknown id is ignored. ``Cancelled`` follows."""
        ...

    def step(self) -> list[RowEvent]:
        """Do one unit of work (a prefill chunk and/or one decode step) and return its events in order."""
        ...

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to do."""
        ...

    @property
    def at_work(self) -> AtWork:
        """What ``step`` was doing when it last returned or raised."""
        ...

    def figures(self) -> LaneFigures:
        """Return the backend's figures; cheap enough to call after every step."""
        ...

    def close(self) -> None:
        """Give up the batch and its buffers. Idempotent."""
        ...

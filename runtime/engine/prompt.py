"""What a client wants generated: its prompt, what the reply must look like, and how a model marks up replies.

Plain immutable values without MLX, free to cross threads; ``port.TextCodec.render`` turns them into ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ...storage.tokens import TokenIds


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat. ``messages`` are template-ready: every content a string, tool calls as OpenAI writes them.

    ``tools`` are OpenAI's function tools, ``{"type": "function", "function": {name, description,
    parameters}}``, of valid form; empty when none are offered. ``template_kwargs`` are the client's, for the
    chat template.
    """

    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] = ()
    template_kwargs: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text to go on from, without a chat template."""

    text: str


@dataclass(frozen=True, slots=True)
class GivenIds:
    """Token ids to go on from, as the client gave them."""

    tokens: tuple[int, ...]


Prompt: TypeAlias = Conversation | PlainText | GivenIds
ConstraintKind: TypeAlias = Literal["json_object", "json_schema", "regex", "grammar", "choice", "tools"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the reply must match, behind any reasoning that the prompt or the model opens.

    ``source`` is a JSON Schema (JSON text), a regular expression, a Lark grammar as llguidance reads it, or
    for ``choice`` a JSON list of strings; empty for ``json_object``. ``tools`` demands a call of one of the
    given tools in the model's own format, with arguments by their schema; several if ``many``. ``param``
    names the request's field, for errors.
    """

    kind: ConstraintKind
    source: str = ""
    tools: tuple[Mapping[str, object], ...] = ()
    many: bool = False
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes tool calls: ``start``, then what ``parser`` understands, then ``end``.

    An ``end`` of "" is the end of the reply. ``parser`` is the name of a module of ``mlx_lm.tool_parsers``.
    ``native``: the chat template shows tools to the model; otherwise the server describes them in a system
    turn of its own, and the model is asked to answer in the format of ``json_tools``.
    """

    start: str
    end: str
    parser: str
    native: bool


PLAIN_TOOLS: Final = ToolFormat("<tool_call>", "</tool_call>", "json_tools", native=False)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The marks in a model's replies. ``reasoning`` are the texts around its thoughts; None for none."""

    tools: ToolFormat = PLAIN_TOOLS
    reasoning: tuple[str, str] | None = None


PLAIN_REPLIES: Final = ReplyFormat()


class RowGuide(Protocol):
    """Which tokens one row may take next. One per row; used by one thread at a time; not thread-safe."""

    def allowed(self, vocab: int) -> NDArray[np.bool_] | None:
        """Return which of ``vocab`` ids may come next, at least one; None when all may (while reasoning)."""
        ...

    def advance(self, token: int) -> None:
        """Note the token that was taken."""
        ...


class Guide(Protocol):
    """A compiled Constraint. Immutable; any thread; shared by the rows of a request."""

    def start(self, emitted: Sequence[int]) -> RowGuide:
        """Return the guide of a row which has emitted those tokens already."""
        ...


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as ids, ready for the reply.

    The first ``boundary`` tokens are those that the next turn will render again, whether the reply is text
    or a tool's result; 0 when that is not known. ``in_reasoning``: the prompt ends inside the model's
    reasoning, so the reply begins there. ``guide`` is the request's constraint, compiled.
    """

    tokens: TokenIds
    boundary: int = 0
    in_reasoning: bool = False
    guide: Guide | None = None

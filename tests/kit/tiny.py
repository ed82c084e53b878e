"""The real engine over a tiny random model: a whole server for each cache family, in a second, without files.

Its codec has one character for every token, so that whatever a random model says can be sent back and
renders to the same ids.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import mlx.core as mx
from samovar.runtime.engine.batching.backend import BackendOptions, MlxBackend
from samovar.runtime.engine.memory import MlxMemoryGauge
from samovar.runtime.engine.models.batchable import always_trims
from samovar.runtime.engine.port import ModelInfo
from samovar.runtime.engine.prompt import Constraint, Conversation, GivenIds, Prompt, RenderedPrompt
from samovar.runtime.engine.state.accounting import SAMPLE_TOKENS, kv_cost, layout_of, signatures_of
from samovar.runtime.engine.state.restore import MlxRestorer
from samovar.runtime.engine.state.scheme import KvChoice, KvScheme
from samovar.runtime.engine.state.scheme_start import resolve
from samovar.storage.identity import Identity
from samovar.storage.tokens import TokenIds

from tests.kit.models import VOCAB, build
from tests.kit.prompts import messages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samovar.runtime.engine.checkpoint import Restorer

TURN, END = 1, 2
_FIRST = 0x4E00  # ids that are no printable ASCII are shown as characters from here on


def shown(token: int) -> str:
    """Return the one character of a token."""
    return chr(token) if 0x20 <= token < 0x7F else chr(_FIRST + token)


def token_of(character: str) -> int:
    code = ord(character)
    return code - _FIRST if _FIRST <= code < _FIRST + VOCAB else code % VOCAB


class CharacterDetokenizer:
    def add(self, token: int) -> str:
        return shown(token)

    def flush(self) -> str:
        return ""


class CharacterCodec:
    """Renders ``<turn>role:content<end>`` for each message, then ``<turn>assistant:``; no constraints."""

    end_tokens = frozenset((END,))

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        if not isinstance(prompt, Conversation):
            given = prompt.tokens if isinstance(prompt, GivenIds) else self.encode(prompt.text)
            return RenderedPrompt(TokenIds.of(given), len(given))
        ids: list[int] = []
        for message in messages_of(prompt):
            ids += [TURN, *self.encode(f"{message['role']}:{message['content']}"), END]
        ids += [TURN, *self.encode("assistant:")]
        return RenderedPrompt(TokenIds.of(ids), len(ids))

    def remember(self, tokens: TokenIds) -> None:
        """Nothing to remember: every character is one token."""

    def seed_history(self, sequences: Sequence[TokenIds]) -> None:
        """Nothing to keep."""

    def encode(self, text: str) -> Sequence[int]:
        return [token_of(character) for character in text]

    def detokenizer(self) -> CharacterDetokenizer:
        return CharacterDetokenizer()


@dataclass(frozen=True)
class _Loaded:
    model: object
    codec: CharacterCodec
    info: ModelInfo
    scheme: KvScheme

    def load(self) -> _Loaded:
        return self


@functools.cache
def _loaded_of(family: str, context_length: int, kv: KvChoice) -> _Loaded:
    model = build(family)
    scheme = resolve(kv, model)
    info = ModelInfo(
        family,
        context_length,
        VOCAB,
        "float32",
        0.0,
        0,
        trims=always_trims(model),
        layers=signatures_of(layout_of(model, SAMPLE_TOKENS, scheme)),
        scheme=scheme.name,
        kv=kv_cost(model, scheme),
        scheme_notes=scheme.notes,
    )
    return _Loaded(model, CharacterCodec(), info, scheme)


@dataclass(frozen=True)
class TinyEngine:
    """``app.Engine`` over the tiny model of a family."""

    family: str
    options: BackendOptions = field(default_factory=BackendOptions)
    context_length: int = 4096
    kv: KvChoice = field(default_factory=KvChoice)

    def _loaded(self) -> _Loaded:
        return _loaded_of(self.family, self.context_length, self.kv)

    def backend(self) -> MlxBackend:
        return MlxBackend(self._loaded(), self.options)

    def with_options(self, **changes: object) -> TinyEngine:
        return replace(self, options=replace(self.options, **changes))

    def codec(self) -> CharacterCodec:
        return CharacterCodec()

    def info(self) -> ModelInfo:
        return self._loaded().info

    def identity(self) -> Identity:
        name = f"tiny-{self.family}-{self.kv.scheme}-{self.kv.start}"
        return Identity(name, {"kv_scheme": self._loaded().scheme.key, "mlx": mx.__version__})

    def restorer(self) -> Restorer:
        return MlxRestorer(self._loaded())

    def memory(self) -> MlxMemoryGauge:
        return MlxMemoryGauge()

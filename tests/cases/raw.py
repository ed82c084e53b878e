"""Tiny models without a chat template: a prompt is exactly the characters that a client sends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from samovar.runtime.engine.prompt import Constraint, Prompt, RenderedPrompt
from samovar.runtime.engine.state.scheme import KvChoice
from samovar.storage.tokens import TokenIds

from tests.kit.prompts import messages_of
from tests.kit.tiny import CharacterCodec, TinyEngine


class RawCodec(CharacterCodec):
    """Renders contents one after the other: a prompt can be exactly an earlier prompt with its reply."""

    def __init__(self, end_tokens: frozenset[int] = frozenset()) -> None:
        self.end_tokens = end_tokens

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        ids = TokenIds.of(self.encode("".join(str(message["content"]) for message in messages_of(prompt))))
        return RenderedPrompt(ids, len(ids))


@dataclass(frozen=True)
class RawEngine(TinyEngine):
    """A tiny model without a template. ``end``: the token that ends replies."""

    end: int | None = None

    def codec(self) -> RawCodec:
        return RawCodec(frozenset() if self.end is None else frozenset((self.end,)))

    def _loaded(self) -> Any:
        return replace(super()._loaded(), codec=self.codec())


def raw(family: str, end: int | None = None, *, kv: KvChoice | None = None, **options: Any) -> RawEngine:
    """Return the engine; options are the backend's. It publishes everything from 4 tokens on."""
    engine = RawEngine(family, end=end, kv=kv or KvChoice())
    return engine.with_options(**({"publish_min_tokens": 4} | options))  # type: ignore[return-value]

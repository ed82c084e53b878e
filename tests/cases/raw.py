"""Tiny models without a chat template: a prompt is exactly the characters that a client sends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from samovar.runtime.engine.port import RenderedPrompt
from samovar.runtime.engine.state.scheme import KvChoice
from samovar.storage.tokens import TokenIds

from tests.kit.tiny import CharacterCodec, TinyEngine

if TYPE_CHECKING:
    from collections.abc import Sequence


class RawCodec(CharacterCodec):
    """Renders contents one after the other: a prompt can be exactly an earlier prompt with its reply."""

    def __init__(self, end_tokens: frozenset[int] = frozenset()) -> None:
        self.end_tokens = end_tokens

    def render_chat(self, messages: Sequence[Any], template_kwargs: Any) -> RenderedPrompt:
        ids = TokenIds.of(self.encode("".join(str(message["content"]) for message in messages)))
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

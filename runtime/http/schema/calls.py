"""What every generating request of OpenAI's style may carry: model, streaming, session, order, choices."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from ....actors.requests import ServiceClass
from ...engine.port import ModelInfo
from ..errors import bad_value, unknown_model
from .base import ApiModel
from .kinds import Chars, Whole

MAX_SESSION_CHARS = 256
MAX_CHOICES = 16
_MAX_SALT_CHARS = 1024

ServiceTier: TypeAlias = Literal["auto", "default", "flex", "priority", "fast", "ultrafast", "scale"]
SessionId: TypeAlias = Annotated[str, Chars(1, MAX_SESSION_CHARS)]
# OpenAI's service_tier -> which requests go first. Nothing is sold here, so what is bought there is ordinary.
_CLASSES: Mapping[ServiceTier, ServiceClass] = {
    "auto": "default",
    "default": "default",
    "scale": "default",
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
    "ultrafast": "priority",
}


class StreamOptions(ApiModel):
    """``include_obfuscation`` pads chunks against observers of TLS sizes; without effect here."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CallFields(ApiModel):
    """``model``: id or alias of a served model, or ``default``. ``cache_salt``: who shares cached prompts."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Whole(1, MAX_CHOICES)] | None = None
    service_tier: ServiceTier | None = None
    session_id: SessionId | None = None
    prompt_cache_key: SessionId | None = None
    cache_salt: Annotated[str, Chars(1, _MAX_SALT_CHARS)] | None = None


def check_model(name: str | None, info: ModelInfo, aliases: Sequence[str]) -> None:
    """Raise HttpError 404 unless ``name`` is served; None is the only model there is."""
    if name is not None and name not in (served := served_names(info, aliases)):
        raise unknown_model(name, served)


def served_names(info: ModelInfo, aliases: Sequence[str]) -> list[str]:
    """Return every name under which the model answers, its id first."""
    return list(dict.fromkeys([info.id, *aliases, "default"]))


def usage_wanted(fields: CallFields) -> bool:
    """Return whether a stream ends with usage. Raises HttpError for options without a stream."""
    if fields.stream_options is None:
        return False
    if not fields.stream:
        raise bad_value("stream_options", "stream_options is only allowed when stream is true.")
    return fields.stream_options.include_usage or False


def service_class_of(tier: ServiceTier | None) -> ServiceClass:
    """Return which requests go first, by OpenAI's name for it."""
    return "default" if tier is None else _CLASSES[tier]


def session_of(headers: Mapping[str, str], *given: str | None) -> str | None:
    """Return the session: the first of ``given`` (fields of the body), else a header. Raises HttpError."""
    for name in given:
        if name is not None:
            return name
    for name in ("x-session-id", "x-session-affinity"):
        header = headers.get(name)
        if header:
            if not (header.isprintable() and len(header) <= MAX_SESSION_CHARS):
                limit = f"printable text of at most {MAX_SESSION_CHARS} characters"
                raise bad_value(name, f"{name} must be {limit}.")
            return header
    return None

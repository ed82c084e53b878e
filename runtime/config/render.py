"""The configuration as others read it: TOML with origins, JSON, and a JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .compounds import Either
from .literals import write_key, write_value
from .tree import KeySpec, SectionSpec, all_keys, root, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .kinds import Raw
    from .load import Loaded


def to_toml(loaded: Loaded) -> str:
    """Return every effective value as TOML, each with a comment that names its origin.

    Secrets are replaced by a text of the wrong type, so the output cannot be loaded with a mask as a key.
    """
    return "\n".join(_section_lines(root(), loaded)).lstrip("\n") + "\n"


def to_json(loaded: Loaded) -> dict[str, object]:
    """Return ``{dotted key: {"value": …, "origin": …}}`` for every key."""
    return {
        spec.dotted: {"value": _shown(spec, loaded), "origin": str(loaded.origin(spec.dotted))}
        for spec in all_keys()
    }


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (2020-12) of a configuration file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Samovar"} | _schema(root())


def _section_lines(spec: SectionSpec, loaded: Loaded) -> Iterator[str]:
    own = [member for member in spec.members.values() if isinstance(member, KeySpec)]
    if own:
        yield ""
        yield f"[{'.'.join(spec.path)}]"
        texts = [f"{write_key(key.path[-1])} = {write_value(_shown(key, loaded))}" for key in own]
        width = min(40, max(len(text) for text in texts))
        for key, text in zip(own, texts, strict=True):
            yield f"{text.ljust(width)}  # {loaded.origin(key.dotted)}{_meaning(key, loaded)}"
    for member in spec.members.values():
        if isinstance(member, SectionSpec):
            yield from _section_lines(member, loaded)


def _shown(spec: KeySpec, loaded: Loaded) -> Raw:
    value = value_of(loaded.config, spec.path)
    if spec.secret and value:
        return f"{len(cast('tuple[str, ...]', value))} hidden"
    return spec.kind.write(value)


def _meaning(spec: KeySpec, loaded: Loaded) -> str:
    """Say what a word like "auto" or a path like "~/kv" stands for."""
    ssd = loaded.config.cache.ssd
    if spec.dotted == "cache.ssd.dir" and (folder := ssd.folder()) is not None and str(folder) != ssd.dir:
        return f": {folder}"
    kind = cast("object", spec.kind)
    if isinstance(kind, Either) and value_of(loaded.config, spec.path) is None:
        return f": {cast('Either[Any]', kind).means}"
    return ""


def _schema(spec: SectionSpec) -> dict[str, object]:
    members = {name: _member_schema(member) for name, member in spec.members.items()}
    return {"type": "object", "description": spec.doc, "additionalProperties": False, "properties": members}


def _member_schema(member: KeySpec | SectionSpec) -> dict[str, object]:
    if isinstance(member, SectionSpec):
        return _schema(member)
    return {"description": member.doc, "default": member.kind.write(member.default)} | member.kind.schema()

"""The schema as a tree that can be walked: sections, keys, and back from flat values to a Config."""

from __future__ import annotations

from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .schema import Config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .kinds import Kind

Path: TypeAlias = "tuple[str, ...]"


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One key: its dotted path, kind, default and meaning."""

    path: Path
    kind: Kind[Any]
    default: object
    doc: str
    secret: bool

    @property
    def dotted(self) -> str:
        """The path as a user writes it."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """One section: its path, meaning, and members by name, in order."""

    path: Path
    doc: str
    members: Mapping[str, KeySpec | SectionSpec]


@cache
def root() -> SectionSpec:
    """Return the whole schema."""
    return _section(Config, ())


def all_keys(spec: SectionSpec | None = None) -> Iterator[KeySpec]:
    """Yield every key, in the order of the schema."""
    for member in (spec or root()).members.values():
        if isinstance(member, KeySpec):
            yield member
        else:
            yield from all_keys(member)


def build(values: Mapping[Path, object]) -> Config:
    """Return a Config with ``values`` (already read by their kinds) over the defaults."""
    return cast("Config", _build(Config, (), values))


def value_of(config: Config, path: Path) -> object:
    """Return the value at ``path``, which must exist."""
    found: object = config
    for name in path:
        found = getattr(found, name)
    return found


def _section(owner: type, path: Path) -> SectionSpec:
    doc = (owner.__doc__ or "").partition("\n")[0]
    return SectionSpec(path, doc, {item.name: _member(item, path) for item in fields(owner)})


def _member(item: Field[Any], path: Path) -> KeySpec | SectionSpec:
    here = (*path, item.name)
    if (owner := _section_class(item)) is not None:
        return _section(owner, here)
    meta = item.metadata
    return KeySpec(here, meta["kind"], meta["default"], meta["doc"], meta["secret"])


def _section_class(item: Field[Any]) -> type | None:
    """Return the dataclass of a section; None for a key."""
    factory = cast("object", item.default_factory)
    return factory if isinstance(factory, type) and is_dataclass(factory) else None


def _build(owner: type, path: Path, values: Mapping[Path, object]) -> object:
    chosen: dict[str, object] = {}
    for item in fields(owner):
        here = (*path, item.name)
        if (section := _section_class(item)) is not None:
            chosen[item.name] = _build(section, here, values)
        elif here in values:
            chosen[item.name] = values[here]
    return owner(**chosen)

"""What ``samovar cache du`` says: who takes how much of a cache folder, and what is left of the volume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import cache_text as text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...storage.filesystem import Space
    from ...storage.scan import Tally
    from .cache_survey import Holdings, Survey


def usage(seen: Survey, space: Space) -> dict[str, object]:
    """Return what ``du --json`` prints. The parts add up to ``total``."""
    return {
        "dir": str(seen.root),
        "total": tally_facts(seen.total),
        "identities": [_identity_facts(one) for one in seen.identities],
        "foreign": tally_facts(seen.foreign),
        "quarantine": tally_facts(seen.quarantine),
        "volume": {"free_bytes": space.free_bytes, "total_bytes": space.total_bytes},
        "failures": seen.failures,
    }


def tally_facts(of: Tally) -> dict[str, object]:
    """Return a tally for JSON."""
    return {"files": of.files, "bytes": of.size_bytes}


def _identity_facts(one: Holdings) -> dict[str, object]:
    return {
        "id": one.identity.id,
        "fields": dict(one.identity.fields),
        "total": tally_facts(one.total),
        "namespaces": [
            {"namespace": name, **tally_facts(of)} for name, of in sorted(one.namespaces().items())
        ],
        "unusable": tally_facts(one.unusable),
        "temporary": tally_facts(one.temp),
        "other": tally_facts(one.other),
    }


def usage_lines(seen: Survey, space: Space) -> Iterator[str]:
    """Yield what ``du`` prints: parts that are empty are left out."""
    rows = [row for one in seen.identities for row in _identity_rows(one)]
    rows += _rows({"foreign files": seen.foreign, "quarantine": seen.quarantine}, "")
    rows.append((text.size(seen.total.size_bytes), f"{seen.total.files:,}", f"total in {seen.root}"))
    yield from text.table([("SIZE", "FILES", ""), *rows], ">><")
    yield from (f"not listed: {text.printable(failure)}" for failure in seen.failures)
    yield f"{text.size(space.free_bytes)} of {text.size(space.total_bytes)} free on the volume"


def _identity_rows(one: Holdings) -> list[tuple[str, str, str]]:
    name = f"{one.identity.id}  {text.fields(one.identity.fields)}".rstrip()
    parts = {f"namespace {text.namespace(name)}": of for name, of in sorted(one.namespaces().items())}
    rest = {"unusable files": one.unusable, "temporary files": one.temp, "other files": one.other}
    return _rows({name: one.total}, "", keep=True) + _rows(parts | rest, "  ")


def _rows(parts: dict[str, Tally], indent: str, *, keep: bool = False) -> list[tuple[str, str, str]]:
    return [
        (text.size(of.size_bytes), f"{of.files:,}", f"{indent}{name}")
        for name, of in parts.items()
        if of.files or keep
    ]

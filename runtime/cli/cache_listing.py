"""What ``samovar cache ls|show`` say. Token ids never appear: they are the user's text."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from ...storage.scan import Tally
from . import cache_text as text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...storage.container import StoredCheckpoint
    from ...storage.scan import Found, Problem
    from ...storage.spec import LayerSpec, TensorSpec
    from .cache_survey import Holdings, Survey

MIN_PREFIX: Final = 4


class EntryNotFound(Exception):
    """No entry, or more than one, has such an id."""

    code = "entry_not_found"
    retryable = False


# -- ls


def listing(seen: Survey) -> dict[str, object]:
    """Return what ``ls --json`` prints."""
    return {
        "dir": str(seen.root),
        "entries": [_entry_facts(found) for found in seen.found()],
        "identities": [_identity_facts(one) for one in seen.identities],
        "problems": [problem_facts(problem) for problem in seen.problems()],
        "failures": seen.failures,
    }


def listing_lines(seen: Survey, now_s: float) -> Iterator[str]:
    """Yield what ``ls`` prints: entries by identity, most recently used first, then problems."""
    for one in seen.identities:
        yield f"{one.identity.id}  {text.fields(one.identity.fields)}".rstrip()
        if one.found:
            yield from (f"  {line}" for line in _entry_table(one, now_s))
    for problem in seen.problems():
        yield problem_line(problem)
    yield from (f"not listed: {text.printable(failure)}" for failure in seen.failures)
    entries = sum((one.entries for one in seen.identities), Tally())
    yield f"{text.tally('entry/entries', entries)} in {seen.root}"


def _entry_table(one: Holdings, now_s: float) -> list[str]:
    rows = [("ID", "NAMESPACE", "TOKENS", "SIZE", "USED")]
    for found in sorted(one.found, key=lambda found: -found.entry.last_used_s):
        entry = found.entry
        used = f"{text.age(now_s - entry.last_used_s)} ago"
        name = text.namespace(entry.namespace)
        rows.append((entry.id, name, f"{len(entry.tokens):,}", text.size(entry.file_bytes), used))
    return text.table(rows, "<<>>>")


def _entry_facts(found: Found) -> dict[str, object]:
    entry = found.entry
    return {
        "id": entry.id,
        "identity": found.identity,
        "namespace": entry.namespace,
        "tokens": len(entry.tokens),
        "bytes": entry.file_bytes,
        "trimmable": entry.trimmable,
        "reusable_from": entry.reusable_from,
        "created_s": found.created_s,
        "last_used_s": entry.last_used_s,
        "path": str(entry.path),
    }


def _identity_facts(one: Holdings) -> dict[str, object]:
    entries = one.entries
    return {
        "id": one.identity.id,
        "fields": dict(one.identity.fields),
        "entries": entries.files,
        "bytes": entries.size_bytes,
    }


def problem_facts(problem: Problem) -> dict[str, object]:
    """Return a problem for JSON."""
    return {
        "path": str(problem.path),
        "identity": problem.identity,
        "code": problem.code,
        "detail": problem.detail,
        "bytes": problem.file_bytes,
    }


def problem_line(problem: Problem) -> str:
    """Return a problem for people: file and reason."""
    return f"{problem.code}: {text.printable(f'{problem.path}: {problem.detail}')}"


# -- show


def entry_with(seen: Survey, given: str) -> Found:
    """Return the entry whose id, or only whose id, begins with ``given``. Raises EntryNotFound."""
    named = [found for found in seen.found() if found.entry.id == given]
    if not named and len(given) >= MIN_PREFIX:
        named = [found for found in seen.found() if found.entry.id.startswith(given)]
    if len(named) == 1:
        return named[0]
    if not named:
        raise EntryNotFound(f"no entry {given!r} in {seen.root}")
    places = ", ".join(f"{found.identity}/{found.entry.id}" for found in named[:4])
    raise EntryNotFound(f"{len(named)} entries are called {given!r}: {places}")


def details(seen: Survey, found: Found, stored: StoredCheckpoint) -> dict[str, object]:
    """Return what ``show --json`` prints of an entry and its header."""
    header = stored.header
    return {
        **_entry_facts(found),
        "identity_fields": _fields_of(seen, found),
        "checksum": header.checksum,
        "features": list(header.features),
        "tensors": len(stored.tensors),
        "tensor_bytes": header.spec.nbytes,
        "layers": [_layer_facts(layer) for layer in header.spec.layers],
        "attachments": [
            {"schema": part.schema, "tensors": _tensor_facts(part.tensors)}
            for part in header.spec.attachments
        ],
    }


def details_lines(seen: Survey, found: Found, stored: StoredCheckpoint, now_s: float) -> Iterator[str]:
    """Yield what ``show`` prints."""
    entry, header, length = found.entry, stored.header, f"{len(found.entry.tokens):,}"
    serves = f"any prefix of {entry.reusable_from:,} to {length}" if entry.trimmable else f"exactly {length}"
    created = datetime.fromtimestamp(header.created_s, UTC).astimezone()
    tensors = f"{text.size(header.spec.nbytes)} in {len(stored.tensors)} tensors, {header.checksum}"
    rows = [
        ("id", entry.id),
        ("file", text.printable(str(entry.path))),
        ("identity", found.identity),
        ("", text.fields(_fields_of(seen, found))),
        ("namespace", text.namespace(entry.namespace)),
        ("tokens", f"{length}; serves {serves} tokens"),
        ("size", f"{text.size(entry.file_bytes)}, of it {tensors}"),
        ("created", created.isoformat(" ", "seconds")),
        ("last used", f"{text.age(now_s - entry.last_used_s)} ago"),
        *(("layers", line) for line in _layer_lines(header.spec.layers)),
        *(("attached", text.printable(part.schema)) for part in header.spec.attachments),
    ]
    yield from text.table([row for row in rows if row[1]], "<<")


def _fields_of(seen: Survey, found: Found) -> dict[str, str]:
    return next(dict(one.identity.fields) for one in seen.identities if one.identity.id == found.identity)


def _layer_lines(layers: Sequence[LayerSpec]) -> Iterator[str]:
    """Yield a line for each run of like layers."""
    for line, same in itertools.groupby(map(_layer_line, layers)):
        yield f"{sum(1 for _ in same)} x {line}"


def _layer_line(layer: LayerSpec) -> str:
    tensors = ", ".join(f"{each.name} {each.dtype} {list(each.shape)}" for each in layer.tensors)
    return text.printable(f"{layer.signature}: {tensors or 'no tensors'}")


def _layer_facts(layer: LayerSpec) -> dict[str, object]:
    return {
        "signature": layer.signature,
        "offset": layer.offset,
        "trimmable": layer.trimmable,
        "reusable_from": layer.reusable_from,
        "geometry": dict(layer.geometry),
        "tensors": _tensor_facts(layer.tensors),
    }


def _tensor_facts(tensors: Sequence[TensorSpec]) -> list[dict[str, object]]:
    return [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape)} for each in tensors]

"""Every error code that the source can give, found by reading it: where, and with which HTTP status."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDERS = ("runtime", "actors", "storage")
CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

# Calls that make an error, and which argument is its code.
MAKERS = {"HttpError": 1, "Refused": 0, "Refusal": 0, "Failed": 1, "failed": 0}


@dataclass
class Found:
    """Where a code is given, by which makers, and with which HTTP statuses."""

    places: set[str] = field(default_factory=set)
    makers: set[str] = field(default_factory=set)
    statuses: set[int] = field(default_factory=set)


@cache
def collect(root: Path = ROOT) -> dict[str, Found]:
    """Return every code of the package's source."""
    codes: dict[str, Found] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            for code, maker, status, line in _of_module(tree):
                found = codes.setdefault(code, Found())
                found.places.add(f"{path.relative_to(root)}:{line}")
                found.makers.add(maker)
                if status is not None:
                    found.statuses.add(status)
    return codes


def _of_module(tree: ast.Module) -> Iterator[tuple[str, str, int | None, int]]:
    names = dict(_constants(tree))
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                for name, value in _constants(node):
                    if name == "code":
                        yield value, "class", None, node.lineno
            case ast.Call():
                yield from _of_call(node, names)
            case _:
                pass


def _of_call(call: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, str, int | None, int]]:
    maker = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    if maker in MAKERS and len(call.args) > MAKERS[maker]:
        given.append(call.args[MAKERS[maker]])
    elif maker not in MAKERS:
        return
    status = call.args[0] if maker == "HttpError" and call.args else None
    number = status.value if isinstance(status, ast.Constant) and isinstance(status.value, int) else None
    for node in given:
        code = node.value if isinstance(node, ast.Constant) else names.get(getattr(node, "id", ""))
        if isinstance(code, str) and CODE.fullmatch(code):
            yield code, maker, number, call.lineno


def _constants(owner: ast.Module | ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the names that stand for a text in a module or a class."""
    for node in owner.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                yield name, text
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                yield name, text
            case _:
                pass

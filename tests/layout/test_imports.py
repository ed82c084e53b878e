"""The import rules of DESIGN §1, read off the source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OURS = ("runtime", "actors", "storage")
MODULES = sorted(path for folder in OURS for path in (ROOT / folder).rglob("*.py"))

# What each part may import of ours; the longest matching prefix counts.
ALLOWED = {
    "runtime.kernel": ("runtime.kernel",),
    "storage": ("storage",),
    "runtime.engine": ("runtime.engine", "storage"),
    "runtime.config": ("runtime.config",),
    "runtime.http": ("runtime", "actors", "storage"),
    "actors": ("actors", "runtime.kernel", "runtime.engine", "storage"),
    "runtime": ("runtime", "actors", "storage"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path) -> Iterator[str]:
    """Yield every imported module by its absolute name, ours without the leading ``samovar.``."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("samovar.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join((*base, *(node.module or "").split("."))).strip(".").removeprefix("samovar.")


def under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_in_the_allowed_direction(path: Path) -> None:
    name = module_name(path)
    rule = max((prefix for prefix in ALLOWED if under(name, prefix)), key=len)
    for imported in imports(path):
        if imported.split(".")[0] in OURS:
            assert any(under(imported, prefix) for prefix in ALLOWED[rule]), f"{name} imports {imported}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_the_engine_imports_mlx(path: Path) -> None:
    name = module_name(path)
    if not under(name, "runtime.engine"):
        for imported in imports(path):
            assert imported.split(".")[0] not in {"mlx", "mlx_lm"}, f"{name} imports {imported}"


@pytest.mark.parametrize(
    "path", [p for p in MODULES if module_name(p).startswith("storage")], ids=module_name
)
def test_storage_knows_no_event_loop_and_one_module_touches_files(path: Path) -> None:
    for imported in imports(path):
        assert imported.split(".")[0] not in {"asyncio", "anyio", "aiofiles", "mlx"}
        if path.name != "fs.py":
            assert imported.split(".")[0] not in {"os", "shutil", "fcntl"}


def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    source = ROOT / "actors" / "generation.py"
    assert "runtime.kernel" in set(imports(source))
    assert "runtime.engine.lane" in set(imports(source))

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_is_named_in_pyproject() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = [
        ".".join(("samovar", *path.parent.relative_to(ROOT).parts))
        for folder in ("runtime", "actors", "storage")
        for path in (ROOT / folder).rglob("__init__.py")
    ]
    assert sorted(listed) == sorted(found)

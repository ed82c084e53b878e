"""Which Samovar this is, and which versions of what it stands on. Imports none of them."""

from __future__ import annotations

import platform
from importlib import metadata

_FOUNDATIONS = ("mlx", "mlx-lm", "aiohttp", "anyio")


def version() -> str:
    """Return the installed version of Samovar. Raises RuntimeError where it is not installed at all."""
    found = installed_version("samovar")
    if found is None:
        raise RuntimeError("samovar is not installed: pip install . in its source folder")
    return found


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def foundations() -> dict[str, str]:
    """Return the versions of Python and of the libraries that matter in a bug report."""
    found = {name: installed_version(name) or "not installed" for name in _FOUNDATIONS}
    return {"python": platform.python_version()} | found

"""OpenBLAS for MLX on Linux CPUs.

The Linux CPU wheel of MLX links the reference BLAS: 4 GFLOP/s in float32. A library loaded with global
symbols before ``mlx.core`` wins the symbol lookup, and OpenBLAS gives about 100 GFLOP/s (DESIGN §4).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import sys
from dataclasses import dataclass
from importlib import metadata

_LINUX_SONAMES = ("libopenblas.so.0", "libopenblasp.so.0")
_CUDA_BUILDS = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")


@dataclass(frozen=True, slots=True)
class BlasReport:
    """What became of the preload.

    ``found``: OpenBLAS is on this system and loads. ``active``: MLX uses it. ``library`` is the name or
    path that was loaded. ``reason`` says why it is not active, and how to mend it where it can be mended.
    """

    found: bool
    active: bool
    library: str | None = None
    reason: str | None = None


def _load_globally(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return name
    return None


def _find_and_load() -> str | None:
    """Try the usual names first: ``find_library`` may start a compiler and take a tenth of a second."""
    loaded = _load_globally(_LINUX_SONAMES)
    if loaded is None and (found := ctypes.util.find_library("openblas")):
        loaded = _load_globally((found,))
    return loaded


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _not_needed() -> str | None:
    if sys.platform != "linux":
        return "not needed: MLX brings its own BLAS on this system"
    if any(map(_installed, _CUDA_BUILDS)):
        return "not needed: this MLX build computes on the GPU"
    return None


@functools.cache
def preload_openblas() -> BlasReport:
    """Load OpenBLAS ahead of MLX where that helps; later calls return the first call's report.

    Never raises. Changes no environment variable, so ``OPENBLAS_NUM_THREADS`` and
    ``OPENBLAS_CORETYPE`` stay the user's.
    """
    if (reason := _not_needed()) is not None:
        return BlasReport(found=False, active=False, reason=reason)
    too_late = "mlx.core" in sys.modules
    library = _find_and_load()
    if library is None:
        return BlasReport(
            found=False,
            active=False,
            reason="OpenBLAS is not installed, so float32 runs about 25 times slower; install libopenblas0",
        )
    if too_late:
        return BlasReport(
            found=True,
            active=False,
            library=library,
            reason="mlx.core was imported before samovar.runtime.engine and kept its own BLAS",
        )
    return BlasReport(found=True, active=True, library=library)

"""OpenBLAS for MLX on Linux CPUs.

The Linux CPU wheel of MLX links the reference BLAS: 4 GFLOP/s in float32. A library loaded with global
symbols before ``mlx.core`` wins the symbol lookup, and OpenBLAS gives about 100 GFLOP/s (DESIGN §4).

OpenBLAS chooses its kernels by the CPU's model, and a release older than the CPU falls back to SSE3: 0.3.21
on an Emerald Rapids server gave 16 GFLOP/s a core, and 105 to 130 with the kernels that the CPU's features
allow. So the features choose them here, unless ``OPENBLAS_CORETYPE`` does.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_LINUX_SONAMES = ("libopenblas.so.0", "libopenblasp.so.0")
_CORETYPE: Final = "OPENBLAS_CORETYPE"
_CORES: Final = (
    ("SkylakeX", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("Haswell", {"avx2", "fma"}),
)
"""Kernels of every OpenBLAS that chooses at run time, best first, and the CPU features that they need."""
_CUDA_BUILDS = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")


@dataclass(frozen=True, slots=True)
class BlasReport:
    """What became of the preload.

    ``found``: OpenBLAS is on this system and loads. ``active``: MLX uses it. ``library`` is the name or
    path that was loaded. ``reason`` says why it is not active, and how to mend it where it can be mended.
    ``core`` names the kernels that OpenBLAS uses, on which the last bits of products depend.
    """

    found: bool
    active: bool
    library: str | None = None
    reason: str | None = None
    core: str | None = None


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


def core_for(cpuinfo: str) -> str | None:
    """Return the best kernels for the CPU that ``/proc/cpuinfo`` tells of; None: leave it to OpenBLAS."""
    line = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    features = set(line.partition(":")[2].split())
    return next((core for core, needed in _CORES if needed <= features), None)


@contextmanager
def _core_chosen() -> Generator[None]:
    """While OpenBLAS is loaded, name it the kernels to use; the environment is then as it was."""
    try:
        core = None if _CORETYPE in os.environ else core_for(Path("/proc/cpuinfo").read_text())
    except OSError:
        core = None
    if core is None:
        yield
        return
    os.environ[_CORETYPE] = core
    try:
        yield
    finally:
        del os.environ[_CORETYPE]


def _core_in_use(library: str) -> str | None:
    try:
        name = ctypes.CDLL(library).openblas_get_corename
    except (OSError, AttributeError):
        return None
    name.restype = ctypes.c_char_p
    return (cast("Callable[[], bytes | None]", name)() or b"").decode() or None


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

    Never raises. Leaves the environment as it was, so ``OPENBLAS_NUM_THREADS`` and
    ``OPENBLAS_CORETYPE`` stay the user's.
    """
    if (reason := _not_needed()) is not None:
        return BlasReport(found=False, active=False, reason=reason)
    too_late = "mlx.core" in sys.modules
    with _core_chosen():
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
    return BlasReport(found=True, active=True, library=library, core=_core_in_use(library))

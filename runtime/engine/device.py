"""What MLX computes on in this process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import mlx.core as mx

from .cpu.blas import BlasReport, preload_openblas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ComputeDtype: TypeAlias = Literal["float32", "model"]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """MLX, its device and its memory. Sizes in bytes; None where the platform does not tell.

    ``compute_dtype``: ``float32`` where half precision and quantised products are slow (Linux CPU),
    ``model`` where the model's own types are the fast ones.
    """

    mlx_version: str
    mlx_lm_version: str
    device: Literal["cpu", "gpu"]
    name: str
    architecture: str
    total_memory_bytes: int | None
    active_memory_bytes: int
    peak_memory_bytes: int
    cache_memory_bytes: int
    compute_dtype: ComputeDtype
    blas: BlasReport

    @property
    def is_cpu(self) -> bool:
        """Whether MLX computes on the CPU."""
        return self.device == "cpu"


def computes_on_cpu() -> bool:
    """Return whether MLX's default device is the CPU."""
    return mx.default_device().type == mx.DeviceType.cpu


def computes_on_cuda() -> bool:
    """Return whether MLX's default device is an NVIDIA GPU."""
    cuda = getattr(mx, "cuda", None)
    return not computes_on_cpu() and cuda is not None and bool(cuda.is_available())


@cache
def thread_stream() -> mx.ThreadLocalStream:
    """Return what is a stream of its own on each thread that uses it, one for as long as that thread lives.

    MLX never ends what is behind a stream, so what runs on a thread after another takes over its stream.
    """
    return mx.new_thread_local_stream(mx.default_device())


def compute_dtype() -> ComputeDtype:
    """Return the dtype policy that suits this machine (DESIGN §4)."""
    return "float32" if sys.platform == "linux" and computes_on_cpu() else "model"


def device_report() -> DeviceReport:
    """Return the state of MLX in this process. Any thread; evaluates nothing."""
    facts = _device_facts()
    return DeviceReport(
        mlx_version=metadata.version("mlx"),
        mlx_lm_version=metadata.version("mlx-lm"),
        device="cpu" if computes_on_cpu() else "gpu",
        name=str(facts.get("device_name", "unknown")),
        architecture=str(facts.get("architecture", "unknown")),
        total_memory_bytes=_total_memory_bytes(facts),
        active_memory_bytes=mx.get_active_memory(),
        peak_memory_bytes=mx.get_peak_memory(),
        cache_memory_bytes=mx.get_cache_memory(),
        compute_dtype=compute_dtype(),
        blas=preload_openblas(),
    )


def _device_facts() -> Mapping[str, str | int]:
    """Ask MLX about its device; some builds lack the call or refuse it for a device."""
    ask = cast("Callable[[], Mapping[str, str | int]] | None", getattr(mx, "device_info", None))
    if ask is None:
        return {}
    try:
        return ask()
    except (RuntimeError, ValueError):
        return {}


def _total_memory_bytes(facts: Mapping[str, str | int]) -> int | None:
    for key in ("memory_size", "total_memory"):
        if isinstance(size := facts.get(key), int):
            return size
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None

from __future__ import annotations

import sys
from importlib import metadata
from typing import TYPE_CHECKING

import mlx.core as mx
from samovar.runtime.engine.cpu.blas import preload_openblas
from samovar.runtime.engine.device import computes_on_cpu, device_report

if TYPE_CHECKING:
    import pytest


def test_a_build_without_device_info_is_reported_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mx, "device_info")
    report = device_report()
    assert report.name == "unknown"
    assert report.total_memory_bytes


def test_a_build_that_refuses_device_info_is_reported_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> dict[str, str]:
        raise RuntimeError("no such device")

    monkeypatch.setattr(mx, "device_info", refuse)
    assert device_report().architecture == "unknown"


def test_report_agrees_with_mlx() -> None:
    held = mx.zeros((1024,))
    mx.eval(held)
    report = device_report()
    assert report.mlx_version == metadata.version("mlx")
    assert report.mlx_lm_version == metadata.version("mlx-lm")
    assert report.is_cpu is computes_on_cpu() is (mx.default_device() == mx.Device(mx.cpu, 0))
    assert report.active_memory_bytes >= held.nbytes
    assert report.peak_memory_bytes >= report.active_memory_bytes
    assert report.blas is preload_openblas()


def test_float32_exactly_on_a_linux_cpu() -> None:
    expected = "float32" if sys.platform == "linux" and computes_on_cpu() else "model"
    assert device_report().compute_dtype == expected

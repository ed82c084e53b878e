from __future__ import annotations

import os
import subprocess
import sys

import pytest
from samovar.runtime.engine.cpu.blas import core_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the preload is for Linux")

REPORT = "from samovar.runtime.engine.cpu.blas import preload_openblas; print(preload_openblas())"


def run(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return result.stdout.strip()


def test_says_that_mlx_came_first() -> None:
    report = run(f"import mlx.core; {REPORT}")
    assert "active=False" in report
    assert "mlx.core was imported before" in report or "not installed" in report or "not needed" in report


def test_absence_is_reported_with_the_remedy() -> None:
    hide = (
        "import ctypes, ctypes.util\n"
        "def refuse(name, mode=0): raise OSError(name)\n"
        "ctypes.CDLL = refuse; ctypes.util.find_library = lambda name: None\n"
    )
    report = run(hide + REPORT)
    assert "found=False" in report
    assert "libopenblas0" in report or "not needed" in report


def test_importing_the_engine_preloads_before_mlx() -> None:
    code = (
        "import sys, samovar.runtime.engine as e\n"
        "assert 'mlx.core' not in sys.modules\n"
        "from samovar.runtime.engine.cpu.blas import preload_openblas as p\n"
        "r = p(); assert r is p(); print(r.active or r.reason)"
    )
    outcome = run(code)
    assert outcome == "True" or "install" in outcome or "not needed" in outcome


def test_active_means_that_products_come_from_it() -> None:
    code = (
        "from samovar.runtime.engine.cpu.blas import preload_openblas as p\n"
        "r = p()\n"
        "import mlx.core as mx\n"
        "a = mx.random.normal((64, 64)); mx.eval(a @ a)\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(r.active, 'openblas' in maps)"
    )
    active, mapped = run(code).split()
    assert active == mapped


def test_core_type_of_the_user_stays() -> None:
    code = "import os, samovar.runtime.engine; print(os.environ['OPENBLAS_CORETYPE'])"
    assert run(code, OPENBLAS_CORETYPE="Haswell") == "Haswell"


@pytest.mark.parametrize(
    ("flags", "core"),
    [
        ("fpu sse2 avx avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl amx_tile", "SkylakeX"),
        ("fpu sse2 avx avx2 fma avx512f avx512cd", "Haswell"),  # Knights Landing has half of AVX-512
        ("fpu sse2 avx", None),
        ("", None),
    ],
)
def test_features_choose_the_kernels(flags: str, core: str | None) -> None:
    assert core_for(f"model : 207\nflags\t\t: {flags}\nbugs : none") == core
    assert core_for("Features : fp asimd") is None


def test_a_cpu_newer_than_openblas_gets_fast_kernels_and_the_environment_stays() -> None:
    code = (
        "import os, pathlib\n"
        "from samovar.runtime.engine.cpu.blas import preload_openblas as p, core_for\n"
        "wanted = core_for(pathlib.Path('/proc/cpuinfo').read_text())\n"
        "print(p().core == wanted or not p().active or wanted is None, 'OPENBLAS_CORETYPE' in os.environ)"
    )
    without = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=without
    )
    assert done.stdout.split() == ["True", "False"]

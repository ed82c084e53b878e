"""What is wrong with this machine or set-up, and how to mend it.

Each check looks at one thing and never raises for a fault that it looks for. Nothing is left behind:
the disk check writes and removes a temporary file. Blocking; takes about a second.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..storage.fs import sync_file
from .config import Config, ConfigError
from .config.units import format_size
from .version import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .config import Loaded
    from .engine.device import DeviceReport

State: TypeAlias = Literal["ok", "warn", "fail"]

GIB = 2**30
MIB = 2**20
ENOUGH_MEMORY_BYTES = 4 * GIB
ENOUGH_MODEL_SPACE_BYTES = GIB
PROBE_BYTES = 32 * MIB
SLOW_DISK_MB_S = 50


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result: what was found and, unless all is well, how to mend it."""

    check: str
    state: State
    found: str
    mend: str = ""


def examine(load: Callable[[], Loaded]) -> Iterator[Finding]:
    """Yield the findings one by one as they are made. ``load`` loads the configuration to be checked."""
    yield from check_machine()
    yield from check_device()
    config = Config()
    try:
        loaded = load()
    except ConfigError as error:
        for problem in error.problems:
            yield Finding("config", "fail", str(problem), "mend it there; the checks below use the defaults")
    else:
        config = loaded.config
        yield from _config_findings(loaded)
    yield from check_folders(config)
    yield check_listening(config)


def check_machine() -> Iterator[Finding]:
    """Look at the system, its memory and its Python."""
    cores = os.cpu_count() or 1
    yield Finding(
        "machine", "ok", f"{platform.system()} {platform.machine()}, {cores} cores, samovar {version()}"
    )
    memory_bytes = _memory_bytes()
    if memory_bytes is not None:
        state: State = "ok" if memory_bytes >= ENOUGH_MEMORY_BYTES else "warn"
        mend = "" if state == "ok" else "serve a small model, and lower cache.ram.max"
        yield Finding("memory", state, f"{memory_bytes / GIB:.1f} GiB", mend)
    wide = sys.maxsize > 2**32
    mend = "" if wide else "install a 64-bit Python: MLX has no other builds"
    yield Finding(
        "python", "ok" if wide else "fail", f"{platform.python_version()} at {sys.executable}", mend
    )


def check_device() -> Iterator[Finding]:
    """Load MLX and look at the device it computes on, and at its BLAS."""
    try:
        from .engine.device import device_report  # noqa: PLC0415 - loads MLX, which may be what is broken

        report = device_report()
    except (ImportError, OSError, RuntimeError) as error:
        mend = "install a build of MLX: pip install 'samovar[cpu]', or 'samovar[cuda]' with an NVIDIA driver"
        yield Finding("mlx", "fail", f"MLX does not load: {error}", mend)
        return
    yield Finding("mlx", "ok", f"mlx {report.mlx_version}, mlx-lm {report.mlx_lm_version}")
    yield Finding("device", "ok", f"{report.device}: {report.name}, computes in {_dtype(report)}")
    yield _blas_finding(report)


def check_folders(config: Config) -> Iterator[Finding]:
    """See whether the model and cache folders can be made, have room, and are quick to write."""
    from .engine.models.store import default_model_root  # noqa: PLC0415 - see check_device

    yield check_folder(
        "models", default_model_root(), "set XDG_CACHE_HOME", wanted_bytes=ENOUGH_MODEL_SPACE_BYTES
    )
    if (folder := config.cache.ssd.folder()) is not None:
        remedy = "set cache.ssd.dir or lower cache.ssd.free_floor"
        yield check_folder("disk cache", folder, remedy, wanted_share=config.cache.ssd.free_floor)


def check_folder(
    check: str, folder: Path, remedy: str, *, wanted_bytes: int = 0, wanted_share: float = 0.0
) -> Finding:
    """Probe the folder, or the closest one above it that exists, for room and speed."""
    try:
        base = _existing(folder)
        usage = shutil.disk_usage(base)
        wanted_bytes = max(wanted_bytes, int(usage.total * wanted_share))
        if usage.free < wanted_bytes + PROBE_BYTES:
            found = f"{folder}: {usage.free / GIB:.1f} GiB free, {wanted_bytes / GIB:.1f} GiB wanted"
            return Finding(check, "warn", found, f"free some space, or {remedy}")
        speed_mb_s = _write_speed_mb_s(base)
    except OSError as error:
        return Finding(
            check, "fail", f"{folder}: {error.strerror}", f"make it a folder you can write, or {remedy}"
        )
    found = f"{folder}: {usage.free / GIB:.1f} GiB free, writes {speed_mb_s:.0f} MB/s"
    if speed_mb_s < SLOW_DISK_MB_S:
        return Finding(check, "warn", found, f"saving {format_size(GIB)} would take long: {remedy}")
    return Finding(check, "ok", found)


def check_listening(config: Config) -> Finding:
    """See whether the server could listen where it is told to."""
    server = config.server
    if server.unix_socket is not None:
        folder = Path(server.unix_socket).expanduser().absolute().parent
        if folder.is_dir():
            return Finding("socket", "ok", server.unix_socket)
        return Finding(
            "socket", "fail", f"{folder} is not there", "make the folder, or change server.unix_socket"
        )
    where = f"{server.host}:{server.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        mend = "stop what listens there (a running Samovar?), or choose another with --host and --port"
        return Finding("port", "fail", f"{where}: {error.strerror or error}", mend)
    return Finding("port", "ok", f"{where} is free")


def _config_findings(loaded: Loaded) -> Iterator[Finding]:
    for warning in loaded.warnings:
        yield Finding("config", "warn", str(warning), "take the setting out until it is there")
    if not loaded.warnings:
        yield Finding("config", "ok", "valid")


def _blas_finding(report: DeviceReport) -> Finding:
    blas = report.blas
    if blas.active:
        return Finding("blas", "ok", f"OpenBLAS ({blas.library})")
    if report.is_cpu and sys.platform == "linux":
        mend = "install OpenBLAS (Debian and Ubuntu: libopenblas0) and start again"
        return Finding("blas", "warn", blas.reason or "OpenBLAS is not in use", mend)
    return Finding("blas", "ok", blas.reason or "MLX's own")


def _dtype(report: DeviceReport) -> str:
    return "the model's own dtype" if report.compute_dtype == "model" else report.compute_dtype


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _existing(folder: Path) -> Path:
    """Return the folder, or the closest one above it that exists."""
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def _write_speed_mb_s(folder: Path) -> float:
    """Write, sync and remove a file of PROBE_BYTES; return decimal megabytes a second."""
    block = os.urandom(MIB)
    with tempfile.TemporaryDirectory(prefix=".samovar-doctor-", dir=folder) as name:
        path = Path(name) / "probe"
        begun_s = time.perf_counter()
        with path.open("wb") as file:
            for _ in range(PROBE_BYTES // MIB):
                file.write(block)
        sync_file(path)
        return PROBE_BYTES / 1e6 / (time.perf_counter() - begun_s)

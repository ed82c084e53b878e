"""What is wrong with this machine or set-up, and how to mend it.

Each check looks at one thing and never raises for a fault that it looks for. Nothing is left behind:
the disk check writes and removes a temporary file. Blocking; takes about a second.
"""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .config import Config, ConfigError
from .finding import Finding
from .folder_checks import check_folders
from .version import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .config import Loaded
    from .engine.device import DeviceReport
    from .finding import State

GIB = 2**30
ENOUGH_MEMORY_BYTES = 4 * GIB
ENOUGH_FILES = 1024
MEMORY_SHARE = 0.75
"""Of the machine's memory; a RAM cache that may grow past it leaves too little for the model."""


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
    yield from check_memory_cache(config, _memory_bytes())
    yield check_model(config)
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
    yield check_open_files()


def check_open_files(limit: int | None = None) -> Finding:
    """See whether enough connections and cache files can be open at a time; ``limit`` as the system says."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "no limit")
    if soft < ENOUGH_FILES:
        mend = "raise it before serving many clients: ulimit -n 4096, or LimitNOFILE= of a systemd unit"
        return Finding("open files", "warn", f"at most {soft}", mend)
    return Finding("open files", "ok", f"at most {soft}")


def check_memory_cache(config: Config, memory_bytes: int | None) -> Iterator[Finding]:
    """See whether the RAM cache, as large as it may grow, leaves room for the model."""
    most = config.cache.ram.max
    if memory_bytes is not None and most > MEMORY_SHARE * memory_bytes:
        found = f"cache.ram.max is {most / GIB:.1f} GiB of {memory_bytes / GIB:.1f} GiB of memory"
        yield Finding(
            "ram cache", "warn", found, f"set cache.ram.max to {memory_bytes / GIB / 2:.0f}GiB or less"
        )


def check_model(config: Config) -> Finding:
    """See whether the configured model is here, or can be fetched. Asks nobody on the network."""
    from .engine.errors import ModelError  # noqa: PLC0415 - see check_device
    from .engine.models.hub import cached_hub_models  # noqa: PLC0415
    from .engine.models.sources import (  # noqa: PLC0415
        GgufFile,
        HubRepository,
        LocalDirectory,
        parse_source,
    )
    from .engine.models.store import ModelStore, check_model_directory  # noqa: PLC0415

    name = config.model.path
    try:
        source = parse_source(name)
        if isinstance(source, LocalDirectory):
            check_model_directory(source.path)
    except ModelError as error:
        return Finding("model", "fail", str(error), "set model.path, or give serve another MODEL")
    here = isinstance(source, LocalDirectory | GgufFile)
    here = here or any(name in {*each.aliases, each.manifest.source} for each in ModelStore().list())
    if isinstance(source, HubRepository):
        here = any(each.repository == name for each in cached_hub_models())
    if here:
        return Finding("model", "ok", f"{name} is here")
    return Finding("model", "ok", f"{name} comes with the first start, or now: samovar models pull {name}")


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

"""The other MLX servers that run on Linux: how each is installed and started, as data.

    python -m benchmarks.peers [--only rapid_mlx,omlx] [--into DIR]     install what is missing, list all

Each lives in a virtual environment of its own under ``DIR`` (the user's cache folder by default); the
project's environment is never touched. torch, triton and mflux are left out: they pull gigabytes of
CUDA builds and no text request needs them. Servers that do need them, or only start with parts of them
faked, are not here. What cannot be installed is reported as skipped, with the reason.

All are started on loopback, offline, with OpenBLAS in front of MLX's reference BLAS, with room for 16
streams, and with their prefix cache on as their own documentation does it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from samovar.runtime.engine.cpu.blas import preload_openblas

from .peers_model import bench_cache

INSTALL_S = 900.0
LEFT_OUT = ("torch", "torchvision", "torchaudio", "triton", "mflux")
ROWS = 16
"""Streams that every server must take at once: the eight of the load and the requests that come in."""


@dataclass(frozen=True)
class Peer:
    """One server.

    ``requirements``: what its environment holds; none means the project's own environment. ``program``: a
    console script there, or ``-m`` and a module. ``arguments`` may name {model}, {models} (the folder that
    holds the model's folder), {port} and {folder} (an empty one of this run). ``model_name``: what requests
    call the model, {model} and {model_name} (its folder's name) allowed. ``distribution`` names the version.
    """

    name: str
    distribution: str
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    model_name: str = "{model}"


SAMOVAR = Peer(
    "samovar",
    "samovar",
    ("-m", "samovar.runtime.cli"),
    ("serve", "{model}", "--port", "{port}", "--ssd", "{folder}/kv", "--batch", str(ROWS)),
    model_name="default",
)

PEERS = (
    Peer(
        "mlx_lm",
        "mlx-lm",
        ("-m", "mlx_lm.server"),
        (
            *("--host", "127.0.0.1", "--port", "{port}", "--model", "{model}"),
            *("--prompt-cache-size", "64", "--prompt-cache-bytes", "4000000000"),
        ),
        model_name="default_model",
    ),
    Peer(
        "rapid_mlx",
        "rapid-mlx",
        ("rapid-mlx",),
        (
            *("--no-banner", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
            *("--cache-memory-mb", "4000", "--disable-model-downloads", "--no-preflight"),
        ),
        ("rapid-mlx==0.16.10", "mlx[cpu]"),
    ),
    Peer(
        "vllm_mlx",
        "vllm-mlx",
        ("vllm-mlx",),
        (
            *("serve", "{model}", "--host", "127.0.0.1", "--port", "{port}", "--continuous-batching"),
            *("--enable-prefix-cache", "--cache-memory-mb", "4000", "--ssd-cache-dir", "{folder}/kv"),
            *("--ssd-cache-max-gb", "10", "--enable-metrics", "--offline"),
        ),
        ("vllm-mlx==0.6.0", "mlx[cpu]"),
    ),
    Peer(
        "vmlx",
        "vmlx",
        ("vmlx",),
        (
            *("serve", "{model}", "--host", "127.0.0.1", "--port", "{port}", "--continuous-batching"),
            *("--max-num-seqs", str(ROWS), "--stream-interval", "1", "--use-paged-cache"),
            *("--enable-block-disk-cache", "--block-disk-cache-dir", "{folder}/kv"),
            *("--block-disk-cache-max-gb", "10"),
        ),
        ("vmlx==1.6.81", "mlx-lm==0.31.3", "mlx[cpu]"),
    ),
    Peer(
        "omlx",
        "flyto-mlx",
        ("omlx",),
        (
            *("serve", "--model-dir", "{models}", "--host", "127.0.0.1", "--port", "{port}"),
            *("--base-path", "{folder}/base", "--hot-cache-max-size", "4GB"),
            *("--paged-ssd-cache-dir", "{folder}/kv", "--paged-ssd-cache-max-size", "10GB"),
            *("--max-concurrent-requests", str(ROWS)),
        ),
        ("flyto-mlx==0.7.0", "mlx[cpu]"),
        model_name="{model_name}",
    ),
)

ALL = {peer.name: peer for peer in (SAMOVAR, *PEERS)}


class NotInstalled(Exception):
    """A peer is not there. The message says why, and what would bring it."""


class Environments:
    """The virtual environments under one folder. Everything blocks; one process at a time."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or bench_cache() / "peers"

    def python(self, peer: Peer) -> Path:
        """Return the interpreter of a peer. Raises NotInstalled."""
        if not peer.requirements:
            return Path(sys.executable)
        if not self._is_there(peer):
            raise NotInstalled(f"not installed: python -m benchmarks.peers --only {peer.name}")
        return self._bin(peer) / "python"

    def command(self, peer: Peer, model: Path, port: int, folder: Path) -> list[str]:
        """Return the command line that serves ``model``. Raises NotInstalled."""
        python = self.python(peer)
        first, *rest = peer.program
        program = [str(python), first] if first == "-m" else [str(python.parent / first)]
        places = {"model": model, "models": model.parent, "port": port, "folder": folder}
        return [*program, *rest, *(each.format(**places) for each in peer.arguments)]

    def versions(self, peer: Peer) -> dict[str, str]:
        """Return the versions of a peer and of what it computes with. Raises NotInstalled."""
        names = (peer.distribution, "mlx", "mlx-lm")
        code = (
            f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {names}}}))"
        )
        done = subprocess.run(
            [str(self.python(peer)), "-c", code], capture_output=True, text=True, check=True, timeout=60.0
        )
        return json.loads(done.stdout)

    def install(self, peer: Peer) -> None:
        """Install a peer, once. Raises NotInstalled with what its installation said last."""
        if not peer.requirements or self._is_there(peer):
            return
        shutil.rmtree(self._home(peer), ignore_errors=True)
        self.root.mkdir(parents=True, exist_ok=True)
        overrides = self.root / "left-out.txt"
        overrides.write_text("".join(f"{each}; sys_platform == 'never'\n" for each in LEFT_OUT))
        uv = self._uv()
        home = str(self._home(peer))
        _install_step([uv, "venv", "--quiet", "--python", sys.executable, home])
        where = ["--python", str(self._bin(peer) / "python"), "--overrides", str(overrides)]
        _install_step([uv, "pip", "install", "--quiet", *where, *peer.requirements])
        self._mark(peer).write_text(_wanted(peer))

    def _uv(self) -> str:
        """Return a uv: pip cannot leave out a dependency. Without one on the path, pip installs it here."""
        if found := shutil.which("uv"):
            return found
        tool = self.root / "tools"
        if not (tool / "bin" / "uv").is_file():
            venv.create(tool, with_pip=True, clear=True)
            _install_step([str(tool / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
        return str(tool / "bin" / "uv")

    def _home(self, peer: Peer) -> Path:
        return self.root / peer.name

    def _bin(self, peer: Peer) -> Path:
        return self._home(peer) / "bin"

    def _mark(self, peer: Peer) -> Path:
        return self._home(peer) / "installed.txt"

    def _is_there(self, peer: Peer) -> bool:
        mark = self._mark(peer)
        return mark.is_file() and mark.read_text() == _wanted(peer)


def model_name(peer: Peer, model: Path) -> str:
    """Return what requests to ``peer`` call the model."""
    return peer.model_name.format(model=model, model_name=model.name)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of every server: no hub, a home of its own, OpenBLAS preloaded by its soname.

    OpenBLAS is told which kernels to use, as Samovar would tell it: an old one does not know a new CPU and
    takes its slowest, and the servers are compared, not what their users know of OpenBLAS.
    """
    report = preload_openblas()
    preload = {"LD_PRELOAD": report.library} if report.active and report.library else {}
    if preload and report.core:
        preload["OPENBLAS_CORETYPE"] = report.core
    own = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "DO_NOT_TRACK": "1"}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**os.environ, **preload, **own, **offline}


def selected(names: str | None) -> list[Peer]:
    """Return the servers of a comma-separated list, all for None. Raises SystemExit for an unknown name."""
    wanted = list(ALL) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in ALL]:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(ALL)}")
    return [ALL[name] for name in wanted]


def installed(
    environments: Environments, names: str | None
) -> tuple[list[tuple[Peer, dict[str, str]]], dict[str, str]]:
    """Return the selected servers that are there with their versions, and why the others are skipped."""
    found: list[tuple[Peer, dict[str, str]]] = []
    skipped: dict[str, str] = {}
    for peer in selected(names):
        try:
            found.append((peer, environments.versions(peer)))
        except NotInstalled as error:
            skipped[peer.name] = str(error)
    return found, skipped


def _wanted(peer: Peer) -> str:
    return "\n".join((*peer.requirements, *(f"without {each}" for each in LEFT_OUT), ""))


def _install_step(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"installation failed: {error}") from error
    if done.returncode != 0:
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-4:])
        raise NotInstalled(f"installation failed: {last}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Install the other MLX servers, each apart.")
    parser.add_argument("--only", help="names, comma-separated")
    parser.add_argument("--into", type=Path, help="folder for the environments")
    args = parser.parse_args()
    environments = Environments(args.into)
    for peer in selected(args.only):
        try:
            environments.install(peer)
            versions = " ".join(f"{name} {version}" for name, version in environments.versions(peer).items())
            print(f"{peer.name:<10} {versions}", flush=True)
        except NotInstalled as error:
            print(f"{peer.name:<10} skipped: {error}", flush=True)


if __name__ == "__main__":
    main()

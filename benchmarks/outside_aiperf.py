"""aiperf, the load generator that the field uses: installed apart, given a load, its export read.

It lives in a virtual environment of its own in the user's cache folder (about 0.8 GB), as the peers do. It
counts the tokens of replies itself, with the model's tokenizer from the model's folder; nothing is fetched.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from .outside_load import Figures, Load
from .peers import Environments, Peer, environment
from .peers_model import bench_cache

if TYPE_CHECKING:
    from pathlib import Path

RUN_S = 600.0
AIPERF = Peer(
    "aiperf",
    "aiperf",
    ("aiperf",),
    (
        *("profile", "--model", "default", "--url", "http://127.0.0.1:{port}", "--tokenizer", "{model}"),
        *("--endpoint-type", "chat", "--streaming", "--custom-dataset-type", "single_turn"),
        *("--dataset-sampling-strategy", "sequential", "--extra-inputs", "temperature:0"),
        *("--random-seed", "1", "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--workers-max", "1", "--record-processor-service-count", "1"),
        *("--input-file", "{folder}/prompts.jsonl", "--output-artifact-dir", "{folder}/aiperf"),
    ),
    ("aiperf==0.13.0",),
)


class AiperfFailed(Exception):
    """It did not measure the load. The message has the end of what it wrote."""


class Aiperf:
    """The installed program. Raises NotInstalled where it cannot be had."""

    def __init__(self, root: Path | None = None) -> None:
        self._environments = Environments(root or bench_cache() / "outside")

    def install(self) -> None:
        """Install it, once. Raises NotInstalled with what its installation said last."""
        self._environments.install(AIPERF)

    def program(self) -> Path:
        """Return the installed program. Raises NotInstalled."""
        return self._environments.python(AIPERF).parent / AIPERF.program[0]

    def command(self, model: Path, port: int, folder: Path, load: Load) -> list[str]:
        """Return the command line that puts ``load`` on the server at ``port``. Raises NotInstalled."""
        return [
            *self._environments.command(AIPERF, model, port, folder),
            *("--concurrency", str(load.at_once), "--request-count", str(load.requests)),
            *("--output-tokens-mean", str(load.reply_tokens)),
        ]

    def measure(self, model: Path, port: int, folder: Path, texts: list[str], load: Load) -> Figures:
        """Put the load on the server; return what aiperf says of it. Raises AiperfFailed, NotInstalled."""
        (folder / "prompts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        # Told to be offline it looks for a local folder in its cache of hub models, and fails.
        online = {name: value for name, value in environment(folder).items() if not name.endswith("_OFFLINE")}
        try:
            done = subprocess.run(
                self.command(model, port, folder, load),
                env=online,
                capture_output=True,
                text=True,
                timeout=RUN_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AiperfFailed(f"not done in {RUN_S:.0f} s") from error
        export = folder / "aiperf" / "profile_export_aiperf.json"
        if done.returncode != 0 or not export.is_file():
            said = " / ".join((done.stdout + done.stderr).strip().splitlines()[-5:])
            raise AiperfFailed(f"ended with {done.returncode}: {said}")
        return figures_of(json.loads(export.read_text()))


def figures_of(export: dict[str, Any]) -> Figures:
    """Return the figures of its exported summary, whose times are milliseconds."""
    return Figures(
        _mean(export, "time_to_first_token", 1e-3),
        _mean(export, "inter_token_latency", 1e-3),
        _mean(export, "request_latency", 1e-3),
        _mean(export, "output_token_throughput", 1.0),
        _mean(export, "request_count", 1.0),
    )


def _mean(export: dict[str, Any], name: str, unit: float) -> float | None:
    found = export.get(name)
    return None if found is None else float(found["avg"]) * unit

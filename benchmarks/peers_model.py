"""The one model of the comparison: the default model as an mlx-lm directory in float32, made once.

    python -m benchmarks.peers_model [--into DIR]     print where it is

MLX computes in float32 on a CPU whatever the weights are (DESIGN §4), and no peer reads the GGUF that the
default model comes from; so all of them, Samovar too, are given the same dequantised weights.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

from samovar.runtime.engine.models.sources import DEFAULT_MODEL, parse_source
from samovar.runtime.engine.models.store import ModelStore, default_model_root

FOLDER = "default-float32"
"""Also its name at servers that name a model after its folder."""


def bench_cache() -> Path:
    """Return the folder for what benchmarks keep between runs, in the user's cache folder."""
    return default_model_root().parent / "bench"


def float32_model(root: Path | None = None) -> Path:
    """Return the model's directory under ``root`` (``bench_cache()`` by default); make it if it is not there.

    It appears whole or not at all. Raises what fetching and converting the default model raises.
    """
    target = (root or bench_cache()) / "models" / FOLDER
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    try:
        _convert(made)
        made.chmod(0o755)
        os.replace(made, target)  # noqa: PTH105 - replaces, where Path.rename would depend on the system
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def _convert(folder: Path) -> None:
    from samovar.runtime.engine.cpu.blas import preload_openblas  # noqa: PLC0415 - only where something is made

    preload_openblas()
    import mlx.core as mx  # noqa: PLC0415 - after OpenBLAS, and not in the process that only measures
    from mlx_lm.utils import (  # noqa: PLC0415
        dequantize_model,
        load,
        save_model,
    )

    source = ModelStore().resolve(parse_source(DEFAULT_MODEL))
    model, tokenizer, config = load(str(source), return_config=True)  # pyright: ignore[reportGeneralTypeIssues, reportAssignmentType]
    model.set_dtype(mx.float32)
    model = dequantize_model(model)
    save_model(folder, model)
    tokenizer.save_pretrained(folder)
    config = {name: value for name, value in config.items() if not name.startswith("quantization")}
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the float32 copy of the default model.")
    parser.add_argument("--into", type=Path, help="folder instead of the user's cache folder")
    print(float32_model(parser.parse_args().into))


if __name__ == "__main__":
    main()

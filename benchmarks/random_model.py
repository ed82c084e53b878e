"""Make a model directory with random weights: a big model for measurements where none can be fetched.

    python -m benchmarks.random_model DIR [--tokenizer MODEL_DIR] [--layers N] [--hidden N] [--dtype T]

Llama architecture; with the defaults 1.2 billion parameters. The tokenizer and its template are those of a
model that is there (the default model's). What it says means nothing; what it costs is real.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from samovar.runtime.engine.models.progress import silent
from samovar.runtime.engine.models.sources import DEFAULT_MODEL, parse_source
from samovar.runtime.engine.models.store import ModelStore

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--context", type=int, default=131_072)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    args = parser.parse_args()
    tokenizer = args.tokenizer or ModelStore().resolve(parse_source(DEFAULT_MODEL), silent)
    args.directory.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, args.directory / name)
    vocab = len(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
    config = {
        "model_type": "llama",
        "hidden_size": args.hidden,
        "num_hidden_layers": args.layers,
        "intermediate_size": 4 * args.hidden,
        "num_attention_heads": args.hidden // 64,
        "num_key_value_heads": args.hidden // 256,
        "rms_norm_eps": 1e-5,
        "vocab_size": max(vocab, 49_152),
        "rope_theta": 500_000.0,
        "max_position_embeddings": args.context,
        "tie_word_embeddings": True,
        "torch_dtype": args.dtype,
    }
    (args.directory / "config.json").write_text(json.dumps(config, indent=2))
    mx.random.seed(7)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    model.set_dtype(getattr(mx, args.dtype))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(args.directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    print(
        f"{sum(each.size for each in weights.values()) / 1e9:.2f} billion parameters in {args.directory.name}"
    )


if __name__ == "__main__":
    main()

"""Convert a GGUF file to an MLX model directory, quantised weights staying as they are.

MLX reads Q4_0, Q4_1 and Q8_0 tensors as packed weights, scales and biases in groups of 32; what it cannot
keep packed comes as float16. llama files hold q and k permuted for interleaved rotary embedding, so the
configuration says ``rope_traditional`` instead of the weights being permuted back.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, cast

import mlx.core as mx
import orjson

from ....storage.fs import staged_folder
from ..errors import ModelUnreadable
from .fetch import sha256_of
from .gguf_metadata import GgufMetadata, GgufValue
from .gguf_tokenizer import GgufTokenizer
from .manifest import MANIFEST_NAME, Manifest, describe_files
from .progress import Progress, ProgressEvent, silent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GROUP_SIZE = 32
_WORD_BITS = 32
_LAYER = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|scales|biases|bias)")
_OUTER = re.compile(r"(token_embd|output_norm|output)\.(weight|scales|biases)")
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert_gguf(
    path: Path,
    destination: Path,
    *,
    source: str,
    member: str | None = None,
    progress: Progress = silent,
) -> Manifest:
    """Write the model in ``path`` to the new folder ``destination`` and return its manifest.

    The folder appears whole or not at all, also when the process is killed. ``source`` and ``member``
    (the file's own name by default) go into the manifest. Raises ModelUnreadable for a damaged file, an
    architecture, tokenizer or tensor that is not supported.
    """
    source_sha256 = sha256_of(path, progress)
    progress(ProgressEvent("convert", 0, None, path.name))
    tensors, metadata = _read(path)
    weights = _renamed(path, tensors)
    tokenizer = GgufTokenizer(metadata)
    config = _config(metadata, weights) | tokenizer.generation_config()
    with staged_folder(destination) as folder:
        _write_json(folder / "config.json", config)
        _write_json(folder / "tokenizer_config.json", tokenizer.config())
        _write_json(folder / "generation_config.json", tokenizer.generation_config())
        tokenizer.write(folder)
        mx.save_safetensors(  # pyright: ignore[reportUnknownMemberType]
            folder / "model.safetensors", weights, {"format": "mlx"}
        )
        manifest = Manifest(
            source=source,
            member=member or path.name,
            source_sha256=source_sha256,
            created_s=int(time.time()),
            files=describe_files(folder, progress),
        )
        (folder / MANIFEST_NAME).write_bytes(manifest.encode())
    progress(ProgressEvent("convert", len(tensors), len(tensors), path.name))
    return manifest


def _read(path: Path) -> tuple[dict[str, mx.array], GgufMetadata]:
    try:
        loaded = mx.load(path, format="gguf", return_metadata=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelUnreadable(f"{path}: not a readable GGUF file: {error}") from error
    tensors, values = cast("tuple[dict[str, mx.array], Mapping[str, GgufValue]]", loaded)
    metadata = GgufMetadata(path, values)
    if metadata.architecture != "llama":
        raise ModelUnreadable(
            f"{path}: GGUF architecture {metadata.architecture!r} is not supported, only 'llama'"
        )
    return tensors, metadata


def _renamed(path: Path, tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors under the names that mlx-lm's llama uses, floats as float16.

    float16 throughout, because one float32 norm would make every activation behind it float32.
    """
    weights: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        renamed = _model_name(name)
        if renamed is None:
            raise ModelUnreadable(f"{path}: tensor {name!r} has no place in a llama model")
        weights[renamed] = tensor.astype(mx.float16) if tensor.dtype == mx.float32 else tensor
    return weights


def _model_name(name: str) -> str | None:
    if (match := _LAYER.fullmatch(name)) and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    if match := _OUTER.fullmatch(name):
        return f"{_OUTER_NAMES[match[1]]}.{match[2]}"
    return None


def _config(metadata: GgufMetadata, weights: Mapping[str, mx.array]) -> dict[str, object]:
    embedding = weights.get("model.embed_tokens.weight")
    if embedding is None:
        raise ModelUnreadable(f"{metadata.path}: tensor 'token_embd.weight' is missing")
    of_model = metadata.of_model
    heads = metadata.integer(of_model("attention.head_count"))
    hidden = metadata.integer(of_model("embedding_length"))
    config: dict[str, object] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": metadata.integer(of_model("block_count")),
        "intermediate_size": metadata.integer(of_model("feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.optional_integer(of_model("attention.head_count_kv")) or heads,
        "head_dim": metadata.optional_integer(of_model("attention.key_length")) or hidden // heads,
        "rms_norm_eps": metadata.number(of_model("attention.layer_norm_rms_epsilon")),
        "rope_theta": metadata.optional_number(of_model("rope.freq_base")) or 10000.0,
        "rope_traditional": True,
        "max_position_embeddings": metadata.context_length,
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "torch_dtype": "float16",
    }
    _refuse_scaled_rope(metadata)
    if (quantization := _quantization(weights)) is not None:
        config["quantization"] = quantization
    return config


def _refuse_scaled_rope(metadata: GgufMetadata) -> None:
    kind = metadata.optional_text(metadata.of_model("rope.scaling.type"))
    if kind not in (None, "none"):
        raise ModelUnreadable(f"{metadata.path}: scaled rotary embedding ({kind}) is not supported")


def _quantization(weights: Mapping[str, mx.array]) -> dict[str, object] | None:
    """Return mlx-lm's quantisation record: the commonest width for all, other widths layer by layer."""
    bits = {
        name.removesuffix(".scales"): _bits(weights[name.removesuffix("scales") + "weight"], scales)
        for name, scales in weights.items()
        if name.endswith(".scales")
    }
    if not bits:
        return None
    widths = list(bits.values())
    common = max(sorted(set(widths)), key=widths.count)
    record: dict[str, object] = {"group_size": GROUP_SIZE, "bits": common}
    for layer, width in sorted(bits.items()):
        if width != common:
            record[layer] = {"group_size": GROUP_SIZE, "bits": width}
    return record


def _bits(packed: mx.array, scales: mx.array) -> int:
    return packed.shape[-1] * _WORD_BITS // (scales.shape[-1] * GROUP_SIZE)


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))

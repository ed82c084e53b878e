"""A tiny GGUF file, written by MLX itself, and a model directory made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from samovar.runtime.engine.models.gguf import convert_gguf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD = 64, 2, 4, 2, 128
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_vocabulary() -> list[str]:
    """Three control tokens, the 256 byte characters, and two merged tokens."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [0x100 + index for index in range(256 - len(shown))]
    return [*SPECIALS, *(chr(code) for code in sorted(shown + hidden)), "he", "hel"]


def tiny_metadata() -> dict[str, object]:
    tokens = tiny_vocabulary()
    numbers = {
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.context_length": 512,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return {
        **{key: mx.array(value, mx.uint32) for key, value in numbers.items()},
        "general.architecture": "llama",
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "llama.rope.freq_base": mx.array(10000.0),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": mx.array([3] * 3 + [1] * (len(tokens) - 3), mx.int32),
        "tokenizer.ggml.merges": ["h e", "he l"],
        "tokenizer.chat_template": TEMPLATE,
    }


def tiny_tensors() -> dict[str, mx.array]:
    key = mx.random.key(7)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"token_embd": (len(tiny_vocabulary()), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k": (kv, HIDDEN),
            f"blk.{layer}.attn_v": (kv, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_up": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, FEED_FORWARD),
        }
    tensors: dict[str, mx.array] = {}
    for name, shape in shapes.items():
        key, draw = mx.random.split(key)
        kind = mx.float32 if len(shape) == 1 else mx.float16
        tensors[f"{name}.weight"] = (mx.random.normal(shape, key=draw) * 0.1).astype(kind)
    return tensors


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny GGUF; ``metadata`` and ``tensors`` replace entries, None removes one."""

    def write(
        name: str = "tiny.gguf",
        *,
        metadata: dict[str, object] | None = None,
        tensors: dict[str, object] | None = None,
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        merged_metadata = {k: v for k, v in (tiny_metadata() | (metadata or {})).items() if v is not None}
        merged_tensors = {k: v for k, v in (tiny_tensors() | (tensors or {})).items() if v is not None}
        mx.save_gguf(path, merged_tensors, merged_metadata)
        return path

    return write


@pytest.fixture
def tiny_model_dir(write_gguf: Callable[..., Path], tmp_path: Path) -> Path:
    """A converted tiny model."""
    destination = tmp_path / "models" / "tiny"
    convert_gguf(write_gguf(), destination, source="test")
    return destination

"""Tiny random-weight models of five families, and a byte-level codec: no files, no network.

Each stands for a kind of cache: llama (plain), gemma3_text with a window of 16 (rotating),
qwen3_next (recurrent and attention), deepseek_v3 (MLA), mamba2 (recurrent only).
"""

from __future__ import annotations

import codecs
import functools
import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import samovar.runtime.engine  # noqa: F401 - loads OpenBLAS before MLX
from mlx.utils import tree_flatten, tree_unflatten
from samovar.runtime.engine.cpu.installing import install
from samovar.runtime.engine.models.loading import evaluate_model
from samovar.runtime.engine.port import ModelInfo
from samovar.runtime.engine.prompt import Constraint, Prompt, RenderedPrompt
from samovar.runtime.engine.state.scheme import BF16, KvScheme
from samovar.storage.tokens import TokenIds

from tests.kit.prompts import messages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCAB = 256
WINDOW = 16
CHUNK = 32

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 4096,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "gemma3_text": {
        "num_hidden_layers": 3,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
    },
    "qwen3_next": {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 64,
        "mlp_only_layers": [],
        "moe_intermediate_size": 64,
        "partial_rotary_factor": 0.5,
        "head_dim": 16,
        "full_attention_interval": 2,
    },
    "deepseek_v3": {
        "moe_intermediate_size": 64,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "qk_nope_head_dim": 16,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "mamba2": {
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
    },
}

# More families, with caches of the kinds above (llama4: chunked): for the few tests that are about them.
KIN: dict[str, dict[str, Any]] = {
    "lfm2": {
        "num_hidden_layers": 3,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "granitemoehybrid": {
        "num_hidden_layers": 3,
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_proj_bias": False,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_conv_bias": True,
    },
    "llama4": {
        "text_config": _COMMON
        | {
            "attention_bias": False,
            "attention_chunk_size": CHUNK,
            "head_dim": 16,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 128,
            "model_type": "llama4_text",
            "num_experts_per_tok": 1,
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
        },
    },
}


class ByteDetokenizer:
    """One token is one byte; incomplete UTF-8 is held back."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(bytes([token]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteCodec:
    """UTF-8 bytes as tokens. ``end_tokens`` may be any set of ids; none by default."""

    def __init__(self, end_tokens: frozenset[int] = frozenset()) -> None:
        self.end_tokens = end_tokens

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        text = "".join(f"{each['role']}: {each['content']}\n" for each in messages_of(prompt))
        return RenderedPrompt(TokenIds.of(self.encode(text)))

    def remember(self, tokens: TokenIds) -> None:
        """Nothing to remember: bytes have one encoding."""

    def seed_history(self, sequences: Sequence[TokenIds]) -> None:
        """Nothing to keep."""

    def encode(self, text: str) -> Sequence[int]:
        return list(text.encode())

    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()


@dataclass(frozen=True)
class TinyModel:
    """A loaded model and the handle to it in one."""

    model: Any
    codec: ByteCodec = field(default_factory=ByteCodec)
    info: ModelInfo = field(default_factory=lambda: ModelInfo("tiny", 4096, VOCAB, "float32", 0.0, 0))
    scheme: KvScheme = BF16

    def load(self) -> TinyModel:
        return self


@functools.cache
def build(family: str) -> Any:
    """Return the model of a family, or of its kin, the same object each time, with evaluated weights.

    ``-wide`` behind the name gives heads of 32, wide enough for MLX to quantise what they keep, and a
    number heads of that width.

    The weights are drawn with keys of their own and wide, so that the best token leads by more than
    rounding differences between batch shapes, and the output wanders instead of repeating one token.
    """
    kind, _, shape = family.partition("-")
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    install()  # as a lane does: what a test computes without a lane comes out the same
    config = _COMMON | (FAMILIES | KIN)[kind] | {"model_type": kind}
    if shape:
        config |= {"head_dim": 32 if shape == "wide" else int(shape)}
    mx.random.seed(7)  # some one-dimensional parameters are random too
    model = module.Model(module.ModelArgs.from_dict(config))
    drawn = [
        (name, _drawn(line, weight)) for line, (name, weight) in enumerate(tree_flatten(model.parameters()))
    ]
    model.update(tree_unflatten(drawn))
    evaluate_model(model)
    return model


def _drawn(line: int, weight: mx.array) -> mx.array:
    if weight.ndim < 2:
        return weight
    spread = 2.0 / weight.shape[-1] ** 0.5
    return mx.random.normal(weight.shape, key=mx.random.key(line)) * spread


def tiny(family: str, end_tokens: frozenset[int] = frozenset()) -> TinyModel:
    """Return a loaded tiny model of the family."""
    return TinyModel(build(family), ByteCodec(end_tokens))

"""A tiny random llama in a folder, for the real server: real template, real tokenizer, grammars, no download.

One token is one printable ASCII character, so every text has one encoding: what a random model says renders
to the same ids after any restart. Weights are large enough that a reply depends on the whole prompt and that
two tokens are hardly ever as good as equal.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INNER = 64, 2, 4, 2, 16, 128
END = "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + '\n' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
)


def write(folder: Path) -> Path:
    """Write the model, unless it is there. Returns the folder."""
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = _tokenizer()
        tokenizer.save(str(folder / "tokenizer.json"))
        vocab = tokenizer.get_vocab_size()
        end = tokenizer.token_to_id(END)
        (folder / "config.json").write_text(json.dumps(_config(vocab, end)))
        (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config()))
        save_file(_weights(vocab), folder / "model.safetensors", {"format": "mlx"})
    return folder


def _tokenizer() -> Tokenizer:
    characters = sorted({"\u0120", "\u010a", *(chr(code) for code in range(0x21, 0x7F))})  # space, line feed
    made = Tokenizer(models.BPE({token: place for place, token in enumerate(characters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(END, normalized=False, special=True)])
    return made


def _config(vocab: int, end: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 8192,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "eos_token": END,
        "pad_token": END,
        "chat_template": TEMPLATE,
    }


def _weights(vocab: int) -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(1)

    def drawn(*shape: int, scale: float = 1.5) -> np.ndarray[Any, Any]:
        spread = scale / np.sqrt(shape[-1])
        return chance.normal(0.0, spread, shape).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    found = {"model.embed_tokens.weight": drawn(vocab, HIDDEN, scale=8.0), "model.norm.weight": ones}
    found["lm_head.weight"] = drawn(vocab, HIDDEN, scale=4.0)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        found[at + "self_attn.q_proj.weight"] = drawn(HEADS * HEAD, HIDDEN)
        found[at + "self_attn.k_proj.weight"] = drawn(KV_HEADS * HEAD, HIDDEN)
        found[at + "self_attn.v_proj.weight"] = drawn(KV_HEADS * HEAD, HIDDEN, scale=4.0)
        found[at + "self_attn.o_proj.weight"] = drawn(HIDDEN, HEADS * HEAD, scale=4.0)
        found[at + "mlp.gate_proj.weight"] = drawn(INNER, HIDDEN)
        found[at + "mlp.up_proj.weight"] = drawn(INNER, HIDDEN)
        found[at + "mlp.down_proj.weight"] = drawn(HIDDEN, INNER)
        found[at + "input_layernorm.weight"] = found[at + "post_attention_layernorm.weight"] = ones
    return found

"""States of tiny models to make checkpoints of, and ways to go on from them that show every bit."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache
from samovar.runtime.engine.batching.admitting import admit
from samovar.runtime.engine.batching.batch import DecodeBatch
from samovar.runtime.engine.models.loading import evaluate_model
from samovar.runtime.engine.port import RowRequest
from samovar.runtime.engine.state.restore import MlxRestorer
from samovar.runtime.engine.state.snapshots import MlxCheckpoint, snapshot
from samovar.storage.container import read_header, read_tensors, write_container
from samovar.storage.fs import OsFilesystem
from samovar.storage.tokens import TokenIds

from tests.kit.models import VOCAB, WINDOW, ByteCodec, TinyModel, build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from samovar.runtime.engine.batching.rows import Row
    from samovar.runtime.engine.checkpoint import Checkpoint

IDENTITY = "1dentity"
CREATED_S = 1.5

# A llama with heads wide enough to quantise (MLX has no groups below 32), and two models of nested cache
# lists: convolution or recurrent state beside attention in every layer.
_OWN: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
    },
    "falcon_h1": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "head_dim": 16,
        "mamba_d_head": 16,
        "mamba_d_ssm": 64,
        "mamba_d_state": 16,
        "mamba_n_heads": 4,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": VOCAB,
    },
    "baichuan_m1": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "sliding_window": 16,
        "sliding_window_layers": [1],
        "conv_window": 2,
        "vocab_size": VOCAB,
    },
}


@functools.cache
def model_of(family: str) -> Any:
    """Return an evaluated model, the same object each time.

    ``llama-bfloat16`` is the kit's llama in half precision, ``llama-wide`` one with heads of 32.
    """
    if family == "llama-bfloat16":
        model = copy.deepcopy(build("llama"))
        model.update(tree_map(lambda weight: weight.astype(mx.bfloat16), model.parameters()))
    elif (kind := family.removesuffix("-wide")) in _OWN and family != "llama":
        module = importlib.import_module(f"mlx_lm.models.{kind}")
        model = module.Model(module.ModelArgs.from_dict(_OWN[kind] | {"model_type": kind}))
        drawn = [
            (name, mx.random.normal(weight.shape, key=mx.random.key(line)) * 0.2)
            for line, (name, weight) in enumerate(tree_flatten(model.parameters()))
        ]
        model.update(tree_unflatten(drawn))
    else:
        return build(family)
    evaluate_model(model)
    return model


def quantised(model: Any) -> list[Any]:
    """Return the caches of a model under a four-bit scheme."""
    return [QuantizedKVCache(group_size=32, bits=4) for _ in model.layers]


@dataclass(frozen=True)
class Case:
    """A state: prompt chunks into empty caches, then decode steps of one token."""

    family: str
    chunks: tuple[int, ...]
    steps: int = 0
    trims: bool = False
    make_caches: Callable[[Any], list[Any]] = make_prompt_cache

    @property
    def model(self) -> Any:
        return model_of(self.family)

    @property
    def handle(self) -> TinyModel:
        return TinyModel(self.model)

    @property
    def length(self) -> int:
        return sum(self.chunks) + self.steps

    @property
    def tokens(self) -> TokenIds:
        return TokenIds.of(token_at(place) for place in range(self.length))

    def live(self) -> list[Any]:
        """Return caches that hold the state."""
        caches, done = self.make_caches(self.model), 0
        for count in (*self.chunks, *[1] * self.steps):
            feed(self.model, caches, [token_at(done + each) for each in range(count)])
            done += count
        return caches

    def checkpoint(self) -> MlxCheckpoint:
        return snapshot(self.live(), self.tokens, "")


CASES = {
    "llama": Case("llama", (13, 27), trims=True),
    "llama-decoded": Case("llama", (13,), 9, trims=True),
    "llama-whole-step": Case("llama", (200, 56), trims=True),
    "llama-bfloat16": Case("llama-bfloat16", (30,), 3, trims=True),
    "gemma3-before-wrap": Case("gemma3_text", (7, 3), trims=True),
    "gemma3-before-wrap-decoded": Case("gemma3_text", (7,), 4, trims=True),
    "gemma3-at-wrap": Case("gemma3_text", (16,)),
    "gemma3-surplus-rows": Case("gemma3_text", (9, 30)),
    "gemma3-wrapped": Case("gemma3_text", (20,), 7),
    "gemma3-wrapped-whole-turn": Case("gemma3_text", (10,), 22),
    "qwen3_next": Case("qwen3_next", (13, 27), 2),
    "deepseek_v3": Case("deepseek_v3", (13, 27), 2, trims=True),
    "mamba2": Case("mamba2", (13, 27), 2),
    "falcon_h1": Case("falcon_h1", (13, 27), 2),
    "baichuan_m1": Case("baichuan_m1", (13, 27), 2),
    "quantised": Case("llama-wide", (13, 27), 2, trims=True, make_caches=quantised),
    "quantised-short": Case("llama-wide", (5,), trims=True, make_caches=quantised),
    "quantised-long": Case("llama-wide", (66,), trims=True, make_caches=quantised),
    "one-token": Case("llama", (1,), trims=True),
}

EACH_KIND = (
    "llama",
    "gemma3-before-wrap",
    "gemma3-wrapped",
    "qwen3_next",
    "deepseek_v3",
    "mamba2",
    "falcon_h1",
    "baichuan_m1",
    "quantised",
)
"""One case of each family, for what takes many steps."""


STEPS = WINDOW + 4
"""Decode steps after which every ring has wrapped, whatever it held."""


def token_at(place: int) -> int:
    return (7 * place + place // 11 + 3) % VOCAB


def feed(model: Any, caches: list[Any], tokens: Sequence[int]) -> mx.array:
    """Run one chunk and return the evaluated logits."""
    logits = model(mx.array([list(tokens)]), cache=caches)
    mx.eval(logits, [leaf for cache in caches for leaf in arrays_in(cache)])
    return logits


def arrays_in(cache: Any) -> list[mx.array]:
    """Return every array of a cache, nested or not."""
    return list(_arrays(cache.state))


def _arrays(value: object) -> Iterator[mx.array]:
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _arrays(each)


def bits(array: mx.array) -> bytes:
    array = mx.contiguous(array)
    mx.eval(array)
    return bytes(memoryview(array).cast("B"))


def going_on(model: Any, caches: list[Any], steps: int = STEPS, chunk: int = 0) -> list[bytes]:
    """Return the logits of a chunk (if any) and of ``steps`` single tokens, bit by bit."""
    logits: list[bytes] = []
    if chunk:
        logits.append(bits(feed(model, caches, [token_at(5 * each) for each in range(chunk)])))
    logits.extend(bits(feed(model, caches, [token_at(3 * step)])) for step in range(steps))
    return logits


def batch_going_on(model: Any, rows: Sequence[list[Any]], steps: int = STEPS) -> list[bytes]:
    """Join rows into a decode batch and return each step's logits."""
    batch = DecodeBatch(model)
    joining: list[Row] = []
    for line, caches in enumerate(rows):
        row = admit(RowRequest(str(line), [1, 2], 100), VOCAB, ByteCodec().detokenizer)
        row.caches = caches
        joining.append(row)
    batch.join(joining)
    logits: list[bytes] = []
    for step in range(steps):
        tokens = [[token_at(3 * step + line)] for line in range(len(rows))]
        out = model(mx.array(tokens), cache=batch._caches)
        mx.eval(out, [array for cache in batch._caches for array in arrays_in(cache)])
        logits.append(bits(out))
    return logits


def digest(checkpoint: Checkpoint) -> str:
    hashed = hashlib.sha256()
    for tensor in checkpoint.segments():
        for segment in tensor:
            hashed.update(segment)
    return hashed.hexdigest()


def on_thread(work: Callable[[], Any]) -> Any:
    """Run ``work`` on a thread of its own and return what it returns."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def save(checkpoint: Checkpoint, path: Path) -> bytes:
    """Write a container file and return its bytes."""
    segments = checkpoint.segments()
    write_container(OsFilesystem(), path, IDENTITY, checkpoint.spec, segments, created_s=CREATED_S)
    return path.read_bytes()


def load(case: Case, path: Path) -> MlxCheckpoint:
    """Restore a file as a reader does, on a thread of its own."""

    def restore() -> MlxCheckpoint:
        restorer = MlxRestorer(case.handle, make_caches=case.make_caches)
        restorer.open()
        try:
            stored = read_header(OsFilesystem(), path)
            target = restorer.allocate(stored.header.spec)
            read_tensors(OsFilesystem(), path, stored, target.segments())
            return target.finish()
        finally:
            restorer.close()

    return on_thread(restore)

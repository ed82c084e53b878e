"""Load a model directory into memory, once, ready for any thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import mlx.core as mx
from mlx_lm import utils as mlx_lm_utils

from ..device import compute_dtype, computes_on_cpu
from ..errors import ModelUnreadable
from ..port import ModelInfo
from ..state.accounting import SAMPLE_TOKENS, kv_cost, layout_of, signatures_of
from ..state.scheme import KvChoice, KvScheme
from ..state.scheme_start import resolve
from ..text.codec import HfTextCodec
from .batchable import always_trims
from .fusing import fuse_projections, fuses
from .model_config import ModelConfig
from .store import check_model_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mlx import nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

DtypePolicy: TypeAlias = Literal["auto", "model", "float32", "bfloat16", "float16"]
"""``auto`` takes what suits the machine (``device.compute_dtype``), ``model`` what the files hold."""

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory: evaluated weights, its text codec, KV scheme and what others may know of it.

    Its parameters must not be changed: lanes and incarnations of lanes share them.
    """

    model: nn.Module
    codec: HfTextCodec
    info: ModelInfo
    path: Path
    config: ModelConfig
    scheme: KvScheme


class ModelHandle:
    """Names a model directory and loads it on first use; later calls give the same object.

    ``kv`` is how its KV state is to be kept. Any thread. A load that failed is tried again by the next call.
    """

    def __init__(
        self,
        path: Path,
        model_id: str,
        *,
        dtype: DtypePolicy = "auto",
        context_length: int | None = None,
        kv: KvChoice | None = None,
    ) -> None:
        if context_length is not None and context_length < 1:
            raise ValueError(f"context_length must be at least 1, not {context_length}")
        self.path = path
        self.id = model_id
        self.kv = kv or KvChoice()
        self._dtype: DtypePolicy = dtype
        self._context_length = context_length
        self._lock = threading.Lock()
        self._loaded: LoadedModel | None = None

    def load(self) -> LoadedModel:
        """Return the model, loading it if this is the first call; a second thread waits for the first.

        Raises ModelUnreadable, naming the directory, with the cause chained, and SchemeRefused.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> LoadedModel:
        check_model_directory(self.path)
        try:
            model, wrapper, config = _read(self.path)
            dtype = _cast(model, self._dtype)
            if fuses():
                fuse_projections(model, lambda: layout_of(model, 1))
            evaluate_model(model)
        # Model files are foreign: any exception out of building a model from them means that they
        # are not readable, and which types occur is up to mlx-lm, transformers and the model class.
        except Exception as error:
            raise ModelUnreadable(f"{self.path}: cannot be loaded: {_named(error)}") from error
        context_length = self._context_length or config.context_length
        codec = HfTextCodec(wrapper, config.end_tokens, context_length=context_length)
        scheme = resolve(self.kv, model, self.path)
        layers, cost = signatures_of(layout_of(model, SAMPLE_TOKENS, scheme)), kv_cost(model, scheme)
        evaluate_model(model)  # once more: a first call may have made arrays that the model keeps
        info = ModelInfo(
            id=self.id,
            context_length=context_length,
            vocab_size=config.vocab_size or codec.vocab_size,
            dtype=dtype,
            default_temperature=config.default_temperature,
            created_s=int((self.path / "config.json").stat().st_mtime),
            trims=always_trims(model),
            layers=layers,
            scheme=scheme.name,
            kv=cost,
            scheme_notes=scheme.notes,
            reply=codec.reply,
        )
        return LoadedModel(model=model, codec=codec, info=info, path=self.path, config=config, scheme=scheme)


def evaluate_model(model: nn.Module) -> None:
    """Evaluate every array that the model holds, parameters or not.

    A lazy array belongs to the stream of the thread that made it, and evaluating it on a lane's thread
    raises. Frequencies of rotary embeddings and the like are no parameters, but are made lazily too.
    """
    mx.eval(list(_arrays(model)))  # pyright: ignore[reportUnknownMemberType]


def _arrays(model: nn.Module) -> Iterator[mx.array]:
    modules = cast("list[nn.Module]", model.modules())  # pyright: ignore[reportUnknownMemberType]
    for module in modules:
        held = [*cast("dict[str, object]", module).values(), *vars(module).values()]
        yield from _flat_arrays(held)


def _flat_arrays(values: list[object]) -> Iterator[mx.array]:
    for value in values:
        if isinstance(value, mx.array):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat_arrays(list(cast("list[object]", value)))
        elif type(value) is dict:  # not a module, which is a dict as well
            yield from _flat_arrays(list(cast("dict[str, object]", value).values()))


def _read(path: Path) -> tuple[nn.Module, TokenizerWrapper, ModelConfig]:
    load_model = cast("Callable[..., tuple[nn.Module, dict[str, object]]]", mlx_lm_utils.load_model)
    load_tokenizer = cast("Callable[..., TokenizerWrapper]", mlx_lm_utils.load_tokenizer)
    model, values = load_model(path, lazy=True)
    config = ModelConfig.read(path, values)
    return model, load_tokenizer(path, eos_token_ids=sorted(config.end_tokens) or None), config


def _cast(model: nn.Module, policy: DtypePolicy) -> str:
    """Bring the weights to the wanted type and return its name.

    On the CPU float32 also means dequantised: quantised products are slow there (DESIGN §4).
    """
    wanted = compute_dtype() if policy == "auto" else policy
    if wanted != "model":
        model.set_dtype(_DTYPES[wanted])
        if wanted == "float32" and computes_on_cpu():
            # After the cast: scales in float32 give exact weights, in half precision rounded ones.
            dequantize = cast("Callable[[nn.Module], nn.Module]", mlx_lm_utils.dequantize_model)
            dequantize(model)
    return _float_type(model)


def _float_type(model: nn.Module) -> str:
    """Return the commonest floating type of the model's arrays, weighed by their size."""
    sizes: dict[str, int] = {}
    for array in _arrays(model):
        if mx.issubdtype(array.dtype, mx.floating):
            name = str(array.dtype).removeprefix("mlx.core.")
            sizes[name] = sizes.get(name, 0) + array.size
    return max(sizes, key=sizes.__getitem__, default="float32")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:300]}"

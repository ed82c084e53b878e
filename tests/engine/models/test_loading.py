from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm import generate
from mlx_lm import utils as mlx_lm_utils
from samovar.runtime.engine.device import compute_dtype, computes_on_cpu
from samovar.runtime.engine.errors import ModelUnreadable
from samovar.runtime.engine.models.loading import LoadedModel, ModelHandle
from samovar.runtime.engine.models.model_config import UNBOUNDED_CONTEXT_LENGTH, ModelConfig
from samovar.runtime.engine.prompt import Conversation

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def default_model(default_model_dir: Path) -> LoadedModel:
    return ModelHandle(default_model_dir, "smollm2").load()


def edit_json(path: Path, **changes: object) -> None:
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}))


def unreadable(folder: Path, match: str) -> ModelUnreadable:
    with pytest.raises(ModelUnreadable, match=match) as caught:
        ModelHandle(folder, "x").load()
    assert str(folder) in str(caught.value)
    return caught.value


def test_no_directory(tmp_path: Path) -> None:
    unreadable(tmp_path / "absent", "no config.json")


def test_an_architecture_that_mlx_lm_does_not_know(tiny_model_dir: Path) -> None:
    edit_json(tiny_model_dir / "config.json", model_type="nonesuch")
    assert unreadable(tiny_model_dir, "nonesuch").__cause__ is not None


def test_damaged_weights(tiny_model_dir: Path) -> None:
    weights = tiny_model_dir / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert unreadable(tiny_model_dir, "cannot be loaded").__cause__ is not None


def test_weights_of_another_shape(tiny_model_dir: Path) -> None:
    edit_json(tiny_model_dir / "config.json", intermediate_size=96)
    unreadable(tiny_model_dir, "cannot be loaded")


def test_missing_weights(tiny_model_dir: Path) -> None:
    edit_json(tiny_model_dir / "config.json", num_hidden_layers=3)
    unreadable(tiny_model_dir, "cannot be loaded")


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_no_usable_tokenizer(tiny_model_dir: Path, content: str | None) -> None:
    path = tiny_model_dir / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    unreadable(tiny_model_dir, "cannot be loaded")


def test_a_failed_load_can_be_tried_again(tiny_model_dir: Path) -> None:
    weights = tiny_model_dir / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(b"")
    handle = ModelHandle(tiny_model_dir, "x")
    with pytest.raises(ModelUnreadable):
        handle.load()
    weights.write_bytes(data)
    assert handle.load().info.id == "x"


@pytest.mark.parametrize("length", [0, -1])
def test_a_context_length_that_cannot_be(tiny_model_dir: Path, length: int) -> None:
    with pytest.raises(ValueError, match="context_length"):
        ModelHandle(tiny_model_dir, "x", context_length=length)


def test_loads_once_whoever_asks(tiny_model_dir: Path) -> None:
    handle = ModelHandle(tiny_model_dir, "x")
    loaded: list[LoadedModel] = []
    threads = [threading.Thread(target=lambda: loaded.append(handle.load())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 4
    assert len({id(model) for model in loaded}) == 1


@pytest.mark.parametrize("dtype", ["auto", "model", "float16"])
def test_a_model_loaded_by_one_thread_runs_on_another(tiny_model_dir: Path, dtype: str) -> None:
    """Scaled rotary embedding keeps lazily made frequencies that are no parameters."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    edit_json(tiny_model_dir / "config.json", rope_scaling=scaling)
    handle = ModelHandle(tiny_model_dir, "x", dtype=dtype)  # type: ignore[arg-type]
    loader = threading.Thread(target=handle.load)
    loader.start()
    loader.join()
    logits = handle.load().model(mx.array([[1, 5, 9]]))
    mx.eval(logits)
    assert logits.shape == (1, 3, 261)
    assert mx.all(mx.isfinite(logits)).item()


def test_facts(tiny_model_dir: Path) -> None:
    loaded = ModelHandle(tiny_model_dir, "tiny").load()
    info = loaded.info
    assert (info.id, info.context_length, info.vocab_size) == ("tiny", 512, 261)
    assert info.default_temperature == 0.0
    assert info.created_s == int((tiny_model_dir / "config.json").stat().st_mtime)
    assert loaded.codec.end_tokens == {0, 2}
    assert info.dtype == ("float32" if compute_dtype() == "float32" else "float16")
    assert ModelHandle(tiny_model_dir, "x", context_length=100).load().info.context_length == 100


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_policy(tiny_model_dir: Path, dtype: str) -> None:
    loaded = ModelHandle(tiny_model_dir, "x", dtype=dtype).load()  # type: ignore[arg-type]
    kinds = {str(array.dtype) for _, array in tree_flatten(loaded.model.parameters())}
    assert kinds == {f"mlx.core.{dtype}"}
    assert loaded.info.dtype == dtype


@pytest.mark.parametrize(
    ("generation", "temperature"),
    [
        ("{", 0.0),
        ("[]", 0.0),
        ("{}", 0.0),
        ('{"temperature": 0.6}', 0.0),
        ('{"do_sample": false, "temperature": 0.6}', 0.0),
        ('{"do_sample": true}', 0.0),
        ('{"do_sample": true, "temperature": null}', 0.0),
        ('{"do_sample": true, "temperature": "hot"}', 0.0),
        ('{"do_sample": true, "temperature": 0.6}', 0.6),
        ('{"do_sample": true, "temperature": 1}', 1.0),
    ],
)
def test_default_temperature(tmp_path: Path, generation: str, temperature: float) -> None:
    (tmp_path / "generation_config.json").write_text(generation)
    assert ModelConfig.read(tmp_path, {}).default_temperature == temperature


@pytest.mark.parametrize(
    ("values", "length"),
    [
        ({}, UNBOUNDED_CONTEXT_LENGTH),
        ({"max_position_embeddings": None, "n_positions": 7}, 7),
        ({"max_position_embeddings": 0}, UNBOUNDED_CONTEXT_LENGTH),
        ({"max_position_embeddings": True}, UNBOUNDED_CONTEXT_LENGTH),
        ({"text_config": {"max_position_embeddings": 9}}, 9),
        ({"max_position_embeddings": 5, "text_config": {"max_position_embeddings": 9}}, 5),
    ],
)
def test_context_length(tmp_path: Path, values: dict[str, object], length: int) -> None:
    assert ModelConfig.read(tmp_path, values).context_length == length


def test_end_tokens_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    config = ModelConfig.read(tmp_path, {"eos_token_id": 1, "text_config": {"eos_token_id": [2, None]}})
    assert config.end_tokens == {1, 2, 3, 4}


@pytest.mark.model
@pytest.mark.timeout(600)
def test_default_model_knows_the_capital_of_france(default_model: LoadedModel) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer briefly."}]
    prompt = list(default_model.codec.render(Conversation(tuple(messages))).tokens)
    answer = generate(default_model.model, default_model.codec._wrapper, prompt, max_tokens=24)
    assert "Paris" in answer


@pytest.mark.model
@pytest.mark.timeout(600)
def test_dequantised_weights_predict_what_the_packed_ones_do(
    default_model: LoadedModel, default_model_dir: Path
) -> None:
    packed, _ = mlx_lm_utils.load_model(default_model_dir, lazy=True)
    packed.set_dtype(mx.float32)
    assert any(name.endswith("scales") for name, _ in tree_flatten(packed.parameters()))
    whole = ModelHandle(default_model_dir, "whole", dtype="float32").load()
    if computes_on_cpu():
        names = {name for name, _ in tree_flatten(whole.model.parameters())}
        assert not any(name.endswith(("scales", "biases")) for name in names)
    tokens = mx.array([list(default_model.codec.encode("The capital of"))])
    difference = mx.max(mx.abs(packed(tokens) - whole.model(tokens))).item()
    assert difference < 1e-2

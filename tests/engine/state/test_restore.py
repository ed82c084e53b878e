"""Checkpoints from files: what does not fit is refused before it costs memory, what fits is the RAM one."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, ConcatenateKVCache
from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.engine.errors import StateMismatch, UnknownCache
from samovar.runtime.engine.state.restore import MlxRestorer
from samovar.runtime.engine.state.scheme import BF16
from samovar.runtime.engine.state.snapshots import clone, snapshot
from samovar.storage.spec import AttachmentSpec, CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

from tests.engine.state.states import (
    CASES,
    Case,
    arrays_in,
    batch_going_on,
    digest,
    feed,
    going_on,
    load,
    on_thread,
    save,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from samovar.runtime.engine.state.snapshots import MlxCheckpoint

BATCHABLE = {name: case for name, case in CASES.items() if not name.startswith("quantised")}
TRIMMABLE = {name: case for name, case in CASES.items() if case.trims and case.length > 1}
LITTLE = 1 << 20


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def restorer() -> Iterator[MlxRestorer]:
    restorer = MlxRestorer(CASES["gemma3-wrapped"].handle)
    restorer.open()
    yield restorer
    restorer.close()


def spec_of(name: str) -> CheckpointSpec:
    return CASES[name].checkpoint().spec


def with_layer(spec: CheckpointSpec, place: int, **changes: Any) -> CheckpointSpec:
    layers = list(spec.layers)
    layers[place] = replace(layers[place], **changes)
    return replace(spec, layers=tuple(layers))


def with_tensor(spec: CheckpointSpec, place: int, **changes: Any) -> CheckpointSpec:
    first, *others = spec.layers[place].tensors
    return with_layer(spec, place, tensors=(replace(first, **changes), *others))


# --- what is refused ------------------------------------------------------------------------------

RING, PLAIN = 0, 2
HUGE = 1 << 40
HOSTILE: dict[str, Callable[[CheckpointSpec], CheckpointSpec]] = {
    "a layer less": lambda spec: replace(spec, layers=spec.layers[:-1]),
    "a layer more": lambda spec: replace(spec, layers=(*spec.layers, spec.layers[0])),
    "no layer": lambda spec: replace(spec, layers=()),
    "layers in another order": lambda spec: replace(spec, layers=spec.layers[::-1]),
    "no tokens": lambda _: CheckpointSpec(TokenIds.of([]), "", ()),
    "an attachment": lambda spec: replace(spec, attachments=(AttachmentSpec("mtp"),)),
    "a signature of nobody": lambda spec: with_layer(spec, PLAIN, signature="kv:turboquant:8:3"),
    "a quantised layer": lambda spec: with_layer(spec, PLAIN, signature="kv:quant:8:64"),
    "a ring as plain": lambda spec: with_layer(spec, RING, signature="kv:plain"),
    "a plain as ring": lambda spec: with_layer(spec, PLAIN, signature="kv:rotating"),
    "a ring that says it trims": lambda spec: with_layer(spec, RING, trimmable=True),
    "a plain that says it does not": lambda spec: with_layer(spec, PLAIN, trimmable=False),
    "no tensors": lambda spec: with_layer(spec, PLAIN, tensors=()),
    "a tensor less": lambda spec: with_layer(spec, PLAIN, tensors=spec.layers[PLAIN].tensors[:1]),
    "a tensor more": lambda spec: with_layer(spec, PLAIN, tensors=spec.layers[PLAIN].tensors * 2),
    "tensors in another order": lambda spec: with_layer(
        spec, PLAIN, tensors=spec.layers[PLAIN].tensors[::-1]
    ),
    "another name": lambda spec: with_tensor(spec, PLAIN, name="keyz"),
    "another type": lambda spec: with_tensor(spec, PLAIN, dtype="float16"),
    "a row less": lambda spec: with_tensor(spec, PLAIN, shape=(1, 2, 26, 16)),
    "a row more": lambda spec: with_tensor(spec, PLAIN, shape=(1, 2, 28, 16)),
    "rows without end": lambda spec: with_tensor(spec, PLAIN, shape=(1, 2, HUGE, 16)),
    "heads without end": lambda spec: with_tensor(spec, PLAIN, shape=(1, HUGE, 27, 16)),
    "another width": lambda spec: with_tensor(spec, PLAIN, shape=(1, 2, 27, 32)),
    "two sequences": lambda spec: with_tensor(spec, PLAIN, shape=(2, 2, 27, 16)),
    "a dimension less": lambda spec: with_tensor(spec, PLAIN, shape=(2, 27, 16)),
    "a scalar": lambda spec: with_tensor(spec, PLAIN, shape=()),
    "a ring longer than its window": lambda spec: with_tensor(spec, RING, shape=(1, 2, 27, 16)),
    "geometry where there is none": lambda spec: with_layer(spec, PLAIN, geometry={"step": 1}),
} | {
    f"a ring of {geometry}": lambda spec, geometry=geometry: with_layer(spec, RING, geometry=geometry)
    for geometry in (
        {},
        {"max_size": 16, "keep": 0},
        {"max_size": HUGE, "keep": 0, "idx": 11},
        {"max_size": 16, "keep": 4, "idx": 11},
        {"max_size": 16, "keep": 0, "idx": 0},
        {"max_size": 16, "keep": 0, "idx": 17},
        {"max_size": 16, "keep": 0, "idx": -1},
        {"max_size": 16, "keep": 0, "idx": "11"},
        {"max_size": 16, "keep": 0, "idx": 11.5},
        {"max_size": 16, "keep": 0, "idx": True},
        {"max_size": 16, "keep": 0, "idx": 11, "more": 1},
    )
}


def test_the_unchanged_spec_is_taken(restorer: MlxRestorer) -> None:
    spec = spec_of("gemma3-wrapped")
    assert spec.layers[RING].geometry == {"max_size": 16, "keep": 0, "idx": 7}
    assert restorer.allocate(spec).finish().spec == spec


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_spec_that_does_not_fit_is_refused_before_it_costs_memory(
    restorer: MlxRestorer, change: Callable[[CheckpointSpec], CheckpointSpec]
) -> None:
    spec = change(spec_of("gemma3-wrapped"))
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    with pytest.raises(StateMismatch):
        restorer.allocate(spec)
    assert mx.get_peak_memory() - before < LITTLE


@pytest.mark.parametrize(
    "geometry", [{"size": HUGE, "present": 3}, {"size": 2, "present": 1}, {"size": 2, "present": -1}, {}]
)
def test_recurrent_state_of_another_geometry_is_refused(geometry: dict[str, int]) -> None:
    case = CASES["mamba2"]
    restorer = MlxRestorer(case.handle)
    restorer.open()
    spec = case.checkpoint().spec
    with pytest.raises(StateMismatch, match="geometry"):
        restorer.allocate(with_layer(spec, 0, geometry=geometry))
    with pytest.raises(StateMismatch, match="tensor"):
        restorer.allocate(with_tensor(spec, 0, shape=(1, HUGE, 3)))
    with pytest.raises(StateMismatch, match="trimmable"):
        restorer.allocate(with_layer(spec, 0, trimmable=True))
    restorer.close()


def test_no_model_takes_anothers_state() -> None:
    families = {case.family: case for case in CASES.values() if case.length > 20}
    specs = {family: case.checkpoint().spec for family, case in families.items()}
    for family, case in families.items():
        restorer = MlxRestorer(case.handle, make_caches=case.make_caches)
        restorer.open()
        for other, spec in specs.items():
            if other != family:
                with pytest.raises(StateMismatch):
                    restorer.allocate(spec)
        restorer.close()


def test_what_the_device_cannot_hold_is_refused() -> None:
    case = CASES["llama"]
    spec = case.checkpoint().spec
    needed = 2 * 2 * 256 * 2 * 16 * 4
    for limit, refused in ((needed - 1, True), (needed, False), (0, False)):
        reading = MemoryReading(0, limit)
        restorer = MlxRestorer(case.handle, memory=lambda reading=reading: reading)
        restorer.open()
        if refused:
            with pytest.raises(StateMismatch, match=f"needs {needed} bytes"):
                restorer.allocate(spec)
        else:
            assert restorer.allocate(spec).finish().held_bytes == needed
        restorer.close()


def test_a_model_of_unknown_caches_restores_nothing() -> None:
    case = CASES["llama"]
    restorer = MlxRestorer(case.handle, make_caches=lambda _: [ConcatenateKVCache(), ConcatenateKVCache()])
    restorer.open()
    with pytest.raises(UnknownCache, match="ConcatenateKVCache"):
        restorer.allocate(case.checkpoint().spec)
    restorer.close()


def test_one_thread_from_open_to_close() -> None:
    case = CASES["one-token"]
    spec = case.checkpoint().spec
    restorer = MlxRestorer(case.handle)
    with pytest.raises(RuntimeError, match="opened"):
        restorer.allocate(spec)
    restorer.open()
    with pytest.raises(RuntimeError, match="thread"):
        on_thread(lambda: restorer.allocate(spec))
    target = restorer.allocate(spec)
    restorer.close()
    restorer.close()
    with pytest.raises(RuntimeError, match="opened"):
        restorer.allocate(spec)
    assert target.finish().spec == spec


def test_a_restore_finishes_once() -> None:
    case = CASES["one-token"]
    restorer = MlxRestorer(case.handle)
    restorer.open()
    target = restorer.allocate(case.checkpoint().spec)
    target.finish()
    with pytest.raises(RuntimeError, match="finished"):
        target.finish()
    with pytest.raises(RuntimeError, match="finished"):
        target.segments()
    restorer.close()


# --- what comes back ------------------------------------------------------------------------------


def round_trip(case: Case, folder: Path) -> tuple[MlxCheckpoint, MlxCheckpoint, bytes]:
    """Return the RAM checkpoint, the restored one, and the file between them."""
    checkpoint = case.checkpoint()
    content = save(checkpoint, folder / "one.kv")
    return checkpoint, load(case, folder / "one.kv"), content


def test_bytes_are_the_same_in_ram_restored_and_saved_again(case: Case, tmp_path: Path) -> None:
    kept, restored, content = round_trip(case, tmp_path)
    assert restored.spec == kept.spec
    assert digest(restored) == digest(kept)
    assert save(restored, tmp_path / "two.kv") == content
    reused = snapshot(clone(restored, case.length), case.tokens, "")
    assert save(reused, tmp_path / "three.kv") == content


def test_logits_are_those_of_the_ram_checkpoint(case: Case, tmp_path: Path) -> None:
    kept, restored, _ = round_trip(case, tmp_path)
    for chunk in (0, 2, 21):
        expected = going_on(case.model, clone(kept, case.length), chunk=chunk)
        assert going_on(case.model, clone(restored, case.length), chunk=chunk) == expected
    assert digest(restored) == digest(kept)


@pytest.mark.parametrize("name", TRIMMABLE)
def test_logits_are_those_of_the_ram_checkpoint_after_a_trim(name: str, tmp_path: Path) -> None:
    case = TRIMMABLE[name]
    kept, restored, _ = round_trip(case, tmp_path)
    for length, chunk in ((1, 0), (case.length // 2, 5), (case.length - 1, 0)):
        expected = going_on(case.model, clone(kept, length), chunk=chunk)
        assert going_on(case.model, clone(restored, length), chunk=chunk) == expected


@pytest.mark.parametrize("name", BATCHABLE)
def test_logits_in_a_batch_are_those_of_the_ram_checkpoints(name: str, tmp_path: Path) -> None:
    case, other = BATCHABLE[name], Case(BATCHABLE[name].family, (5,), 2)
    (tmp_path / "other").mkdir()
    pairs = [round_trip(case, tmp_path), round_trip(other, tmp_path / "other")]
    lengths = (case.length, other.length)
    kept, restored = (
        [(pair[which], length) for pair, length in zip(pairs, lengths, strict=True)] for which in (0, 1)
    )
    for rows in (1, 2):
        expected = batch_going_on(case.model, [clone(*each) for each in kept[:rows]])
        assert batch_going_on(case.model, [clone(*each) for each in restored[:rows]]) == expected


def test_a_single_byte_would_show(case: Case) -> None:
    """The comparison of logits sees a change of any tensor's first byte that counts."""
    kept = case.checkpoint()
    restorer = MlxRestorer(case.handle, make_caches=case.make_caches)
    restorer.open()
    target = restorer.allocate(kept.spec)
    for source, destination in zip(kept.segments(), target.segments(), strict=True):
        for bytes_in, bytes_out in zip([b"".join(source)], [destination], strict=True):
            fill(bytes_out, bytes_in)
    last = [segments[-1] for segments in target.segments() if segments][-1]
    last[-1] ^= 0x41
    spoiled = target.finish()
    restorer.close()
    assert digest(spoiled) != digest(kept)
    expected = going_on(case.model, clone(kept, case.length), 3)
    assert going_on(case.model, clone(spoiled, case.length), 3) != expected


def fill(segments: Any, content: bytes) -> None:
    for segment in segments:
        segment[:] = content[: segment.nbytes]
        content = content[segment.nbytes :]
    assert not content


def restored_bytes(layer: LayerSpec) -> int:
    """Whole steps of 256 rows with room for a token, a ring no more than its window, other state as it is."""
    stored = sum(tensor.nbytes for tensor in layer.tensors)
    if layer.signature == "state:arrays":
        return stored
    capacity = min((layer.offset // 256 + 1) * 256, layer.geometry.get("max_size", 1 << 30))
    return stored // layer.tensors[0].shape[2] * capacity


def test_growing_layers_come_back_with_room_for_a_token(case: Case, tmp_path: Path) -> None:
    _, restored, _ = round_trip(case, tmp_path)
    assert restored.held_bytes == sum(map(restored_bytes, restored.spec.layers))


def test_the_first_step_after_a_restore_updates_in_place(tmp_path: Path) -> None:
    """When nobody else holds the restored buffers, they are the live cache's from then on."""
    case = CASES["llama-whole-step"]
    save(case.checkpoint(), tmp_path / "one.kv")
    lent: Any = clone(load(case, tmp_path / "one.kv"), case.length)
    before = addresses(lent)
    feed(case.model, lent, [1])
    assert addresses(lent) == before


def addresses(caches: list[Any]) -> list[int]:
    return [
        ctypes.addressof(ctypes.c_char.from_buffer(memoryview(array).cast("B")))
        for cache in caches
        for array in arrays_in(cache)
    ]


FRESH = """
import json, sys
from pathlib import Path
from samovar.runtime.engine.state.snapshots import clone
from tests.engine.state.states import CASES, going_on, load, on_thread
for name, path in json.loads(sys.argv[1]).items():
    case = CASES[name]
    case.model
    restored = load(case, Path(path))
    on_thread(lambda: going_on(case.model, clone(restored, case.length), 1))
    print(b"".join(going_on(case.model, clone(restored, case.length), 40, 5)).hex())
"""


@pytest.mark.timeout(60)  # a process that imports MLX, and four models in each
def test_a_new_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """The restorer's thread is the first to call the model there; other threads then decode with it."""
    paths: dict[str, str] = {}
    expected: list[str] = []
    for name in ("llama", "gemma3-wrapped", "qwen3_next", "mamba2"):
        case, paths[name] = CASES[name], str(tmp_path / name)
        checkpoint = case.checkpoint()
        save(checkpoint, tmp_path / name)
        expected.append(b"".join(going_on(case.model, clone(checkpoint, case.length), 40, 5)).hex())
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", FRESH, json.dumps(paths)]
    output = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    assert output.split() == expected


class Grams:
    """A model whose state is its last three tokens, or as many as there are."""

    scheme = BF16

    def load(self) -> Any:
        return self

    @property
    def model(self) -> Any:
        return self

    def make_cache(self) -> list[Any]:
        return [ArraysCache(1)]

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        seen = tokens if cache[0][0] is None else mx.concatenate([cache[0][0], tokens], axis=1)
        cache[0][0] = seen[:, -3:]
        return tokens


@pytest.mark.parametrize("length", [1, 2, 3, 4, 63, 64, 65, 1000])
def test_state_whose_shape_depends_on_the_first_tokens(length: int) -> None:
    model = Grams()
    caches = model.make_cache()
    model(mx.zeros((1, length), mx.uint32), caches)
    checkpoint = snapshot(caches, TokenIds.of([0] * length), "")
    restorer = MlxRestorer(model)  # pyright: ignore[reportArgumentType] - it is no text model
    restorer.open()
    assert restorer.allocate(checkpoint.spec).finish().spec == checkpoint.spec
    with pytest.raises(StateMismatch, match="tensor"):
        restorer.allocate(with_tensor(checkpoint.spec, 0, shape=(1, min(length, 3) + 1)))
    restorer.close()


def test_a_restore_costs_its_buffers_and_no_more(tmp_path: Path) -> None:
    case = Case("llama", (700, 700), trims=True)
    save(case.checkpoint(), tmp_path / "one.kv")
    load(case, tmp_path / "one.kv")
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    restored = load(case, tmp_path / "one.kv")
    stray = 64 << 10  # threads of tests before may still take a little, or let go of it
    assert abs(mx.get_active_memory() - before - restored.held_bytes) <= stray
    assert mx.get_peak_memory() - before <= restored.held_bytes + stray


def test_the_lowest_valid_offset_survives_the_file(tmp_path: Path) -> None:
    case = CASES["quantised"]
    live = case.live()
    live[0].reusable_from = 7
    save(snapshot(live, case.tokens, "adapter"), tmp_path / "one.kv")
    restored = load(case, tmp_path / "one.kv")
    assert restored.spec.reusable_from == 7
    assert restored.spec.namespace == "adapter"
    lent: Any = clone(restored, 9)
    assert [getattr(cache, "reusable_from", 0) for cache in lent] == [7, 0]


def test_layers_of_any_names_are_plain_data() -> None:
    """What the engine says of a state is what a container can hold."""
    for name in CASES:
        for layer in spec_of(name).layers:
            assert isinstance(layer, LayerSpec)
            assert all(isinstance(value, int) for value in layer.geometry.values())
            assert all(isinstance(tensor, TensorSpec) for tensor in layer.tensors)

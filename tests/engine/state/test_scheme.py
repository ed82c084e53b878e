"""KV schemes: what is refused at the start, what is resolved, when rows convert, and what it costs."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache
from samovar.runtime.config import load
from samovar.runtime.engine.batching.prefill import launch_pass
from samovar.runtime.engine.errors import SchemeRefused
from samovar.runtime.engine.models.loading import ModelHandle, evaluate_model
from samovar.runtime.engine.state.accounting import SAMPLE_TOKENS, kv_cost, layout_of, signatures_of
from samovar.runtime.engine.state.identity import model_identity
from samovar.runtime.engine.state.scheme import BF16, FLOAT_TOKENS, KvChoice, KvScheme, LayerScheme
from samovar.runtime.engine.state.scheme_kernels import check_kernels
from samovar.runtime.engine.state.scheme_start import resolve
from samovar.runtime.engine.state.snapshots import snapshot
from samovar.runtime.serve import StartError, serve
from samovar.storage.tokens import TokenIds

from tests.engine.batching.test_batch import make_row
from tests.kit.models import WINDOW, build

if TYPE_CHECKING:
    from pathlib import Path

    from samovar.runtime.engine.batching.rows import Row

WIDE = ("llama-wide", "gemma3_text-wide", "qwen3_next-wide")
SINKS: dict[str, Any] = {
    "hidden_size": 64,
    "head_dim": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "sliding_window": 16,
    "vocab_size": 256,
}


def config_file(folder: Path, *entries: object) -> Path:
    (folder / "kv_config.json").write_text(json.dumps(list(entries)))
    return folder


# --- what is refused at the start -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "choice", "said"),
    [
        ("mamba2", KvChoice("kv8"), "none .*: layers 0, 1: state:arrays has nothing to quantise"),
        (
            "deepseek_v3",
            KvChoice("kv4"),
            r"layers 0, 1: kv:plain holds latents \(keys 32 and values 8 wide\)",
        ),
        ("llama-80", KvChoice("kv4", 64), "keys 80 and values 80 wide have no whole groups of 32 to 64"),
        ("llama", KvChoice("kv8"), "keys 16 and values 16 wide have no whole groups of 32"),
        ("llama-wide", KvChoice("turbo:k8v3"), "TurboQuant is not in this version"),
        ("llama-wide", KvChoice("config"), "needs a model folder with kv_config.json"),
    ],
)
def test_a_scheme_that_no_layer_takes_is_refused_with_the_numbers(
    family: str, choice: KvChoice, said: str
) -> None:
    with pytest.raises(SchemeRefused, match=said) as refused:
        resolve(choice, build(family))
    assert refused.value.usage
    assert not refused.value.retryable


def test_a_model_that_cannot_compute_with_quantised_layers_is_refused() -> None:
    """Attention sinks: mlx-lm raises at the first token over a quantised layer."""
    module = importlib.import_module("mlx_lm.models.gpt_oss")
    model = module.Model(module.ModelArgs.from_dict(SINKS | {"model_type": "gpt_oss"}))
    evaluate_model(model)
    with pytest.raises(SchemeRefused, match=r"layers 0, 1: the model cannot compute .* sinks"):
        resolve(KvChoice("kv8"), model)


def test_a_device_without_the_kernel_is_refused_with_what_mlx_says() -> None:
    seven = KvScheme("kv7", (LayerScheme(7, 32), LayerScheme(7, 32)))
    with pytest.raises(SchemeRefused, match=r"cannot compute 7-bit attention .*quantize"):
        check_kernels(build("llama-wide"), seven)


def test_a_missing_file_is_refused_and_named(tmp_path: Path) -> None:
    with pytest.raises(SchemeRefused, match=r"kv_config\.json, which is not there"):
        resolve(KvChoice("config"), build("llama-wide"), tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ('{"bits": 8}', "expected a list of layers, found dict"),
        ("[3]", "entry 0: expected an object"),
        ('[{"bits": 8}]', "entry 0: layer_idx is None"),
        ('[{"layer_idx": -1, "bits": 8}]', "entry 0: layer_idx is -1"),
        ('[{"layer_idx": true, "bits": 8}]', "entry 0: layer_idx is True"),
        ('[{"layer_idx": 0, "bits": 7}]', "entry 0: bits is 7"),
        ('[{"layer_idx": 0, "bits": 8, "group_size": 48}]', "entry 0: group_size is 48"),
        ('[{"layer_idx": 0, "bits": 8, "group": 64}]', "entry 0: unknown key 'group'"),
        ('[{"layer_idx": 0, "bits": 8}, {"layer_idx": 0, "bits": 16}]', "entry 1: layer_idx 0 comes twice"),
        ('[{"layer_idx": 2, "bits": 8}]', "layer_idx 2, but the model's cache layers are 2"),
    ],
)
def test_a_file_that_says_nothing_sensible_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "kv_config.json").write_text(content)
    with pytest.raises(SchemeRefused, match=said):
        resolve(KvChoice("config"), build("llama-wide"), tmp_path)


def test_a_layer_that_the_file_names_and_that_cannot_be_quantised_is_refused(tmp_path: Path) -> None:
    folder = config_file(tmp_path, {"layer_idx": 0, "bits": 8}, {"layer_idx": 1, "bits": 8})
    with pytest.raises(SchemeRefused, match="some named layers do not: layer 0: state:arrays"):
        resolve(KvChoice("config"), build("qwen3_next-wide"), folder)


@pytest.mark.parametrize("disk", [False, True], ids=["ram", "disk"])
def test_the_server_does_not_start_and_calls_it_a_matter_of_configuration(
    tiny_model_dir: Path, tmp_path: Path, disk: bool
) -> None:
    """Without a disk a lane finds out; with one the identity of the states needs the scheme before that."""
    ssd = tmp_path / "kv" if disk else "off"
    settings = (f"model.path={tiny_model_dir}", "kv.scheme=kv4", f"cache.ssd.dir={ssd}", "server.port=0")
    with pytest.raises(StartError, match="keys 16 and values 16 wide have no whole groups") as ended:
        serve(load([], {}, settings, []).config)
    assert (ended.value.usage, ended.value.code) == (True, "kv_scheme_refused")


# --- what is resolved -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "asked", "used"), [(96, 64, 32), (96, 128, 32), (64, 64, 64), (128, 128, 128), (128, 64, 64)]
)
def test_the_widest_whole_group_not_above_the_one_asked_is_used(width: int, asked: int, used: int) -> None:
    scheme = resolve(KvChoice("kv4", asked), build(f"llama-{width}"))
    assert scheme.layers == (LayerScheme(4, used),) * 2
    assert scheme.notes == ()


def test_recurrent_layers_are_kept_and_said_to_be() -> None:
    model = build("qwen3_next-wide")
    scheme = resolve(KvChoice("kv8"), model)
    assert scheme.layers == (None, LayerScheme(8, 32))
    assert scheme.notes == ("layer 0: state:arrays has nothing to quantise",)
    layers = signatures_of(layout_of(model, SAMPLE_TOKENS, scheme))
    assert layers == {"state:arrays": 1, "kv:quant:8:32": 1}


def test_rings_and_plain_layers_are_both_quantised() -> None:
    model = build("gemma3_text-wide")
    layers = signatures_of(layout_of(model, SAMPLE_TOKENS, resolve(KvChoice("kv4"), model)))
    assert layers == {"kv:rotating-quant:4:32": 2, "kv:quant:4:32": 1}


def test_the_file_says_each_layers_bits_and_group(tmp_path: Path) -> None:
    first, second = {"layer_idx": 1, "bits": 8, "group_size": 32}, {"layer_idx": 0, "bits": 4}
    scheme = resolve(KvChoice("config", 64), build("llama-64"), config_file(tmp_path, first, second))
    assert scheme.layers == (LayerScheme(4, 64), LayerScheme(8, 32))
    kept = config_file(tmp_path, first, {"layer_idx": 0, "bits": 16})
    assert resolve(KvChoice("config"), build("llama-64"), kept).layers == (None, LayerScheme(8, 32))


def test_a_file_that_quantises_nothing_is_bf16_by_another_name(tmp_path: Path) -> None:
    scheme = resolve(KvChoice("config"), build("llama"), config_file(tmp_path))
    assert not scheme.quantises
    assert scheme.key == BF16.key


def test_keys_differ_in_whatever_changes_bytes() -> None:
    layer = LayerScheme(4, 64)
    schemes = [
        BF16,
        KvScheme("kv4", (layer, layer)),
        KvScheme("kv4", (layer, layer), start=24),
        KvScheme("kv4", (LayerScheme(4, 32), layer)),
        KvScheme("kv4", (layer, LayerScheme(4, 32))),
        KvScheme("kv4", (None, layer)),
        KvScheme("kv8", (LayerScheme(8, 64), LayerScheme(8, 64))),
    ]
    assert len({scheme.key for scheme in schemes}) == len(schemes)
    assert KvScheme("config", (layer, layer)).key == KvScheme("kv4", (layer, layer)).key


def test_the_scheme_is_part_of_the_identity(tiny_model_dir: Path, tmp_path: Path) -> None:
    keys = ("bf16", KvScheme("kv4", (LayerScheme(4, 32),)).key, KvScheme("kv4", (LayerScheme(4, 32),), 9).key)
    identities = [model_identity(tiny_model_dir, "auto", key, tmp_path / "memo") for key in keys]
    assert len({identity.id for identity in identities}) == 3
    assert identities[1].fields["kv_scheme"] == "affine from 0: 1 x 4:32"


def test_a_loaded_model_says_what_its_state_is_and_costs(tiny_model_dir: Path) -> None:
    info = ModelHandle(tiny_model_dir, "tiny").load().info
    assert (info.scheme, info.layers, info.scheme_notes) == ("bf16", {"kv:plain": 2}, ())
    assert info.kv.bytes_for(100) > 0


# --- when rows convert ----------------------------------------------------------------------------


def prefilled(family: str, row: Row, scheme: KvScheme, chunk: int = 1000) -> Row:
    """Prefill a row as a lane does, in passes of ``chunk`` tokens."""
    scheme.plan(row)
    while row.remaining or not row.caches:
        count = min(chunk, row.to_stop)
        launch_pass(build(family), [(row, count)], 0).wait()
        row.prefilled += count
        scheme.settle(row)
    return row


def kinds(row: Row) -> set[str]:
    return {type(cache).__name__ for cache in row.caches}


def test_nothing_converts_without_a_scheme() -> None:
    assert kinds(prefilled("llama-wide", make_row("a", 300), BF16)) == {"KVCache"}


@pytest.mark.parametrize(
    ("length", "start", "publish_at", "wanted"),
    [
        (10, 0, (), 9),
        (1, 0, (), 1),
        (2, 0, (), 1),
        (300, 0, (200, 299), 200),
        (9000, 0, (), FLOAT_TOKENS),
        (10, 24, (), 24),
        (300, 24, (7, 299), 24),
        (25, 24, (), 24),
    ],
)
def test_where_a_row_converts_follows_from_its_prompt(
    length: int, start: int, publish_at: tuple[int, ...], wanted: int
) -> None:
    row = make_row("a", length)
    row.publish_at = frozenset(publish_at)
    KvScheme("kv4", (LayerScheme(4, 32),), start).plan(row)
    assert row.convert_at == wanted


def test_a_row_that_starts_from_quantised_state_does_not_convert_again() -> None:
    row = make_row("a", 300)
    row.cached = row.prefilled = 100
    row.convert_at = 7
    KvScheme("kv4", (LayerScheme(4, 32),), 24).plan(row)
    assert row.convert_at is None
    row.cached = row.prefilled = 10
    KvScheme("kv4", (LayerScheme(4, 32),), 24).plan(row)
    assert row.convert_at == 24


@pytest.mark.parametrize("start", [0, 24])
@pytest.mark.parametrize("family", WIDE)
def test_the_same_state_however_prefill_was_cut(family: str, start: int) -> None:
    scheme = resolve(KvChoice("kv4", 64, start), build(family))
    whole, cut = (prefilled(family, make_row("a", 100), scheme, chunk) for chunk in (1000, 17))
    assert kinds(whole) == kinds(cut)
    tokens = TokenIds.of(whole.prompt[:-1])
    states = [snapshot(row.caches, tokens, "") for row in (whole, cut)]
    assert [layer.signature for layer in states[0].spec.layers] == [
        layer.signature for layer in states[1].spec.layers
    ]
    model = build(family)
    logits = [model(mx.array([[5]]), cache=state.lend(99))[0, -1] for state in states]
    assert mx.allclose(*logits, atol=1e-2, rtol=1e-2)


def test_an_empty_state_is_left_alone() -> None:
    scheme = resolve(KvChoice("kv4"), build("llama-wide"))
    row = prefilled("llama-wide", make_row("a", 1), scheme)
    assert kinds(row) == {"KVCache"}
    assert row.convert_at == 1


def test_one_layer_at_a_time_exists_twice() -> None:
    layers, tokens = 16, 2048
    caches: list[Any] = []
    for _ in range(layers):
        cache = KVCache()
        cache.update_and_fetch(mx.ones((1, 4, tokens, 64)), mx.ones((1, 4, tokens, 64)))
        caches.append(cache)
    mx.eval([cache.state for cache in caches])
    layer_bytes = caches[0].nbytes
    del cache
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    converted = KvScheme("kv8", (LayerScheme(8, 64),) * layers).converted(caches, wait=True)
    assert caches == []
    assert mx.get_peak_memory() - before < 2 * layer_bytes
    # Other tests of this process may have left memory in use: what counts is what the layers gave back.
    assert before - mx.get_active_memory() > layers * layer_bytes / 2
    assert {type(each).__name__ for each in converted} == {"QuantizedKVCache"}


@pytest.mark.parametrize("scheme", ["kv8", "kv4"])
@pytest.mark.parametrize(("length", "start"), [(60, 0), (10, 24), (60, 24)])
def test_rows_decode_as_mlx_lms_own_quantised_loop(scheme: str, length: int, start: int) -> None:
    """Its loop converts behind a chunk: one of ``start`` tokens puts that where a row converts."""
    model, row = build("llama-wide"), make_row("a", length)
    resolved = resolve(KvChoice(scheme, 64, start), model)
    caches = prefilled("llama-wide", row, resolved).caches
    steps = generate_step(
        mx.array(row.prompt),
        model,
        max_tokens=30,
        prefill_step_size=start or 2048,
        kv_bits=int(scheme[2:]),
        kv_group_size=32,
        quantized_kv_start=start,
    )
    wanted = [int(token) for token, _ in steps]
    token, got = row.prompt[-1], []
    for step in range(30):
        if row.convert_at is not None and length - 1 + step >= row.convert_at:
            caches, row.convert_at = resolved.converted(caches), None
        token = int(mx.argmax(model(mx.array([[token]]), cache=caches)[0, -1]).item())
        got.append(token)
    assert got == wanted


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["bf16", "kv8", "kv4"])
@pytest.mark.parametrize("family", [*WIDE, "deepseek_v3", "mamba2", "llama-96"])
def test_the_bytes_of_a_row_are_known_beforehand(family: str, scheme: str) -> None:
    model = build(family)
    try:
        resolved = resolve(KvChoice(scheme, 64, 24), model)
    except SchemeRefused:
        assert family in ("deepseek_v3", "mamba2")
        return
    cost = kv_cost(model, resolved)
    for tokens in (8, WINDOW, 24, 40, 300):
        row = prefilled(family, make_row("a", tokens + 1), resolved)
        real = snapshot(row.caches, TokenIds.of(row.prompt[:-1]), "").spec.nbytes
        assert cost.bytes_for(tokens) == pytest.approx(real, rel=0.01), tokens

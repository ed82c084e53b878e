"""Rows of every family and scheme that decode in company as they would alone (REQUIREMENTS B2, B3, B7)."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from samovar.runtime.engine.errors import StateMismatch
from samovar.runtime.engine.state.restore import MlxRestorer
from samovar.runtime.engine.state.snapshots import clone, snapshot
from samovar.storage.tokens import TokenIds

from tests.engine.state.company import STEPS, Company, Prefilled, Scheme, alone, prefill, prompt
from tests.engine.state.states import bits, on_thread
from tests.kit.models import TinyModel

if TYPE_CHECKING:
    from samovar.runtime.engine.state.snapshots import MlxCheckpoint

SCHEMES = [
    Scheme("llama-wide", None),
    Scheme("llama-wide", 8),
    Scheme("llama-wide", 4),
    Scheme("gemma3_text-wide", None),
    Scheme("gemma3_text-wide", 8),
    Scheme("gemma3_text-wide", 4),
    Scheme("qwen3_next-wide", 4),
]
STATEFUL = [
    Scheme(family, None)
    for family in (
        "deepseek_v3",
        "mamba2",
        "qwen3_next",
        "falcon_h1",
        "baichuan_m1",
        "lfm2",
        "granitemoehybrid",
    )
]

TOLERANCE = 5e-4
ROUNDED = 0.1
"""Greatest difference of a logit (of spread 2 to 30) in company: sums run over other shapes, and behind a
quantised layer a number that then falls on the other side of a boundary is off by a whole step."""


def name(scheme: Scheme) -> str:
    return f"{scheme.family}-{scheme.bits or 'plain'}"


def differs(company: Company, row: str, length: int, line: int) -> float:
    """Return the greatest difference of a row's logits from those alone; its tokens must be the same."""
    told = company.told[row]
    wanted = alone(company.scheme, length, line, min(STEPS, len(told.tokens)))
    assert told.tokens[:STEPS] == wanted.tokens
    pairs = zip(told.logits[:STEPS], wanted.logits, strict=False)
    return max(float(mx.abs(one - other).max()) for one, other in pairs)


@pytest.mark.parametrize("scheme", SCHEMES, ids=name)
def test_rows_that_join_late_and_leave_early_decode_as_alone(scheme: Scheme) -> None:
    """5 and 66 tokens, joined mid-decode: B122. Rings of 16 wrap in prefill, in decode and in company."""
    lengths = {"short": 5, "long": 66, "late": 17}
    rows = {
        name: prefill(scheme, prompt(length, line)) for line, (name, length) in enumerate(lengths.items())
    }
    company = Company(scheme)
    company.join(short=rows["short"])
    company.decode(4)
    company.join(long=rows["long"])
    company.decode(9)
    company.join(late=rows["late"])
    company.decode(7)
    company.leave("long")
    company.decode(STEPS - 20)
    company.leave("short")
    company.decode(13)
    worst = max(differs(company, row, length, line) for line, (row, length) in enumerate(lengths.items()))
    assert worst < (ROUNDED if scheme.bits else TOLERANCE)


@pytest.mark.parametrize("scheme", STATEFUL, ids=name)
def test_states_that_cannot_be_cut_join_and_leave_too(scheme: Scheme) -> None:
    """Recurrent and latent states, beside attention and nested: prompts of 2, 9, 17 and 37 tokens (B26)."""
    lengths = {"a": 2, "b": 9, "c": 17, "d": 37}
    rows = {
        name: prefill(scheme, prompt(length, line)) for line, (name, length) in enumerate(lengths.items())
    }
    company = Company(scheme)
    company.join(a=rows["a"], d=rows["d"])
    company.decode(5)
    company.join(b=rows["b"])
    company.decode(3)
    company.leave("d")
    company.join(c=rows["c"])
    company.decode(8)
    company.leave("a", "b")
    company.decode(4)
    for line, (row, length) in enumerate(lengths.items()):
        assert differs(company, row, length, line) < TOLERANCE


RESTORED = [*SCHEMES, Scheme("mamba2", None), Scheme("deepseek_v3", None), Scheme("baichuan_m1", None)]


def restored(scheme: Scheme, checkpoint: MlxCheckpoint) -> MlxCheckpoint:
    """Return the checkpoint as a reader makes it from its stored bytes."""

    def restore() -> MlxCheckpoint:
        restorer = MlxRestorer(TinyModel(scheme.model), make_caches=lambda _: scheme.caches())
        restorer.open()
        target = restorer.allocate(checkpoint.spec)
        for source, views in zip(checkpoint.segments(), target.segments(), strict=True):
            content = b"".join(source)
            for view in views:
                view[:] = content[: view.nbytes]
                content = content[view.nbytes :]
            assert not content
        restorer.close()
        return target.finish()

    return on_thread(restore)


def logits_of(company: Company, steps: int) -> list[bytes]:
    """Return the logits of the next steps, bit by bit."""
    seen: list[bytes] = []
    for _ in range(steps):
        assert company.logits is not None
        seen.append(bits(company.logits))
        company.decode(1)
    return seen


@pytest.mark.parametrize("scheme", RESTORED, ids=name)
def test_rows_that_left_and_came_back_go_on_as_those_that_stayed(scheme: Scheme) -> None:
    """Extracted, kept, lent or restored, and joined again: bit for bit what the live batch does (B7).

    Of 3 and 40 tokens after 7 steps in company: a ring of 16 has wrapped for one row, which is in mid-turn,
    and not for the other.
    """
    lengths = {"short": 3, "long": 40}
    company = Company(scheme)
    company.join(**{name: prefill(scheme, prompt(length)) for name, length in lengths.items()})
    company.decode(7)
    left = {name: company.row(name) for name in lengths}
    kept = {
        name: snapshot(row.caches, TokenIds.of([*prompt(lengths[name]), *company.told[name].tokens]), "")
        for name, row in left.items()
    }
    expected = logits_of(company, 12)
    for back in (lambda each: each, lambda each: restored(scheme, each)):
        again = Company(scheme)
        rows = {
            name: Prefilled(clone(back(each), lengths[name] + 7), left[name].logits)
            for name, each in kept.items()
        }
        again.join(**rows)
        assert logits_of(again, 12) == expected


@pytest.mark.parametrize("scheme", RESTORED, ids=name)
def test_a_row_alone_hands_over_its_buffers_both_ways(scheme: Scheme) -> None:
    """It computes as without a batch, and a copy that left goes on bit for bit as the row that stayed."""
    company = Company(scheme)
    company.join(only=prefill(scheme, prompt(40)))
    company.decode(7)
    assert differs(company, "only", 40, 0) == 0.0
    left = company.row("only")
    tokens = TokenIds.of([*prompt(40), *company.told["only"].tokens])
    kept = snapshot(left.caches, tokens, "")
    expected = logits_of(company, 12)
    for caches in (left.caches, clone(kept, 47), clone(restored(scheme, kept), 47)):
        again = Company(scheme)
        again.join(only=Prefilled(caches, left.logits))
        assert logits_of(again, 12) == expected


RING, FULL = 0, 2
HOSTILE = [
    (RING, {"signature": "kv:rotating"}),
    (RING, {"signature": "kv:rotating-quant:8:32"}),
    (RING, {"trimmable": True}),
    (RING, {"geometry": {}}),
    (RING, {"geometry": {"max_size": 16, "keep": 0, "idx": 0, "bits": 4, "group_size": 32}}),
    (RING, {"geometry": {"max_size": 16, "keep": 0, "idx": 7, "bits": 8, "group_size": 32}}),
    (RING, {"geometry": {"max_size": 16, "keep": 0, "idx": 7, "bits": 4, "group_size": 64}}),
    (RING, {"geometry": {"max_size": 1 << 40, "keep": 0, "idx": 7, "bits": 4, "group_size": 32}}),
    (RING, {"geometry": {"max_size": 16, "keep": 0, "idx": 7, "bits": 4, "group_size": 32, "more": 1}}),
    (FULL, {"signature": "kv:quant:8:32"}),
    (FULL, {"geometry": {"bits": 4, "group_size": 64}}),
]


@pytest.mark.parametrize(("layer", "changes"), HOSTILE)
def test_a_quantised_spec_that_does_not_fit_is_refused(layer: int, changes: dict[str, object]) -> None:
    scheme = Scheme("gemma3_text-wide", 4)
    spec = wrapped(scheme).spec
    assert spec.layers[RING].signature == "kv:rotating-quant:4:32"
    assert spec.layers[RING].geometry["idx"] == 7
    layers = list(spec.layers)
    layers[layer] = replace(layers[layer], **changes)
    restorer = MlxRestorer(TinyModel(scheme.model), make_caches=lambda _: scheme.caches())
    restorer.open()
    assert restorer.allocate(spec).finish().spec == spec
    with pytest.raises(StateMismatch):
        restorer.allocate(replace(spec, layers=tuple(layers)))
    restorer.close()


@functools.cache
def wrapped(scheme: Scheme) -> MlxCheckpoint:
    """Return the state of a row whose rings are in mid-turn."""
    company = Company(scheme)
    company.join(only=prefill(scheme, prompt(40)))
    company.decode(7)
    tokens = TokenIds.of([*prompt(40), *company.told["only"].tokens])
    return snapshot(company.row("only").caches, tokens, "")

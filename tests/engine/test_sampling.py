from __future__ import annotations

from collections import Counter
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import samovar.runtime.engine  # noqa: F401 - loads OpenBLAS before MLX
from hypothesis import given, settings
from hypothesis import strategies as st
from samovar.runtime.engine.port import Sampling
from samovar.runtime.engine.sampling import BatchSampler, RowSampler, draw_keys

VOCAB = 32
LOGITS = mx.random.normal((VOCAB,), key=mx.random.key(5)) * 2.0


def draw(*rows: RowSampler, logits: mx.array = LOGITS) -> list[int]:
    batch = BatchSampler(rows, VOCAB)
    tokens = batch.sample(mx.stack([logits] * len(rows)))
    batch.store()
    return tokens.tolist()  # type: ignore[return-value]


def row(prompt: list[int] | None = None, **options: Any) -> RowSampler:
    return RowSampler(Sampling(**options), [1, 2, 3] if prompt is None else prompt)


def support(count: int = 400, logits: mx.array = LOGITS, **options: Any) -> set[int]:
    """The tokens that ``count`` draws with different seeds give."""
    rows = [row(seed=seed, **options) for seed in range(count)]
    return set(draw(*rows, logits=logits))


def best(count: int) -> set[int]:
    return set(np.argsort(-np.array(LOGITS))[:count].tolist())


def test_temperature_zero_is_greedy_whatever_the_filters_say() -> None:
    assert draw(row(top_k=5, top_p=0.5, min_p=0.1, seed=1)) == [int(mx.argmax(LOGITS).item())]


def test_a_hot_row_draws_in_proportion() -> None:
    rows = [row(temperature=0.7, seed=seed) for seed in range(3000)]
    seen = Counter(draw(*rows))
    wanted = np.array(mx.softmax(LOGITS / 0.7))
    drawn = np.array([seen[token] for token in range(VOCAB)]) / 3000
    assert np.abs(drawn - wanted).max() < 0.04


def test_top_k_keeps_the_best_k() -> None:
    assert support(temperature=5.0, top_k=4) == best(4)


def test_top_k_beyond_the_vocabulary_filters_nothing() -> None:
    assert support(temperature=50.0, top_k=VOCAB + 9, count=1500) == set(range(VOCAB))


def test_top_p_keeps_the_smallest_set_with_that_mass() -> None:
    ranked = np.sort(np.array(mx.softmax(LOGITS)))[::-1]
    count = int(np.searchsorted(np.cumsum(ranked), 0.6) + 1)
    assert support(temperature=5.0, top_p=0.6) == best(count)


def test_top_p_zero_leaves_the_best_token() -> None:
    assert support(temperature=5.0, top_p=0.0, count=50) == best(1)


def test_min_p_keeps_what_is_near_enough_to_the_best() -> None:
    shares = np.array(mx.softmax(LOGITS))
    kept = set(np.flatnonzero(shares >= 0.2 * shares.max()).tolist())
    assert support(temperature=5.0, min_p=0.2) == kept


@settings(max_examples=40)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "temperature": st.sampled_from([0.0, 0.5, 1.0, 3.0]),
                "top_p": st.sampled_from([1.0, 0.9, 0.4]),
                "top_k": st.sampled_from([0, 1, 3, 20]),
                "min_p": st.sampled_from([0.0, 0.1]),
                "repetition_penalty": st.sampled_from([1.0, 1.3]),
                "presence_penalty": st.sampled_from([0.0, 0.7]),
                "frequency_penalty": st.sampled_from([0.0, 0.4]),
                "seed": st.integers(0, 2**70),
            }
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 3),
)
def test_company_changes_nobodys_tokens(many: list[dict[str, Any]], steps: int) -> None:
    together = [row(**options) for options in many]
    alone = [row(**options) for options in many]
    for _ in range(steps):
        assert draw(*together) == [draw(each)[0] for each in alone]


def test_equal_seeds_repeat_and_no_seed_differs() -> None:
    def sequence(seed: int | None) -> list[int]:
        one = row(temperature=5.0, seed=seed)
        return [draw(one)[0] for _ in range(12)]

    assert sequence(3) == sequence(3)
    assert sequence(3) != sequence(4)
    assert sequence(None) != sequence(None)


def test_a_resumed_row_draws_on_as_it_would_have() -> None:
    whole = row(temperature=5.0, seed=9)
    tokens = [draw(whole)[0] for _ in range(8)]
    resumed = RowSampler(Sampling(temperature=5.0, seed=9), [1, 2, 3], tokens[:5])
    assert [draw(resumed)[0] for _ in range(3)] == tokens[5:]


def test_keys_differ_between_seeds_and_positions() -> None:
    seeds = np.repeat(np.array([0, 1, 2, 2**64 - 1, 2**63], dtype=np.uint64), 200)
    keys = draw_keys(seeds, np.tile(np.arange(200, dtype=np.uint64), 5))
    assert keys.dtype == np.uint32
    assert len({tuple(key) for key in keys.tolist()}) == 1000


def test_logit_bias_moves_the_choice() -> None:
    worst = int(mx.argmin(LOGITS).item())
    assert draw(row(logit_bias={worst: 100.0}), row()) == [worst, int(mx.argmax(LOGITS).item())]


def test_repetition_penalty_sees_prompt_and_output() -> None:
    logits = mx.array([2.0, 1.9, 1.8] + [-5.0] * (VOCAB - 3))
    one = row([0], repetition_penalty=1.2)
    assert [draw(one, logits=logits)[0] for _ in range(3)] == [1, 2, 0]


def test_repetition_penalty_pushes_negative_logits_down() -> None:
    logits = mx.array([-1.0, -1.1] + [-5.0] * (VOCAB - 2))
    assert draw(row([0], repetition_penalty=1.5), logits=logits) == [1]


@pytest.mark.parametrize(
    ("option", "wanted"), [("presence_penalty", [0, 1, 0, 0]), ("frequency_penalty", [0, 1, 0, 1])]
)
def test_presence_and_frequency_look_at_the_output_only(option: str, wanted: list[int]) -> None:
    logits = mx.array([2.0, 1.5] + [-5.0] * (VOCAB - 2))
    one = row([0, 0, 0], **{option: 1.0})
    assert [draw(one, logits=logits)[0] for _ in range(4)] == wanted


def test_counts_survive_a_change_of_company() -> None:
    logits = mx.array([2.0, 1.5] + [-5.0] * (VOCAB - 2))
    one = row(presence_penalty=1.0)
    assert draw(one, logits=logits) == [0]
    assert draw(row(), one, row(temperature=1e-9), logits=logits) == [0, 1, 0]
    assert draw(one, row(frequency_penalty=0.1), logits=logits) == [0, 0]

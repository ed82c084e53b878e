from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
import samovar.runtime.engine  # noqa: F401 - loads OpenBLAS before MLX
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors
from samovar.runtime.engine.batching.sampling import BatchSampler, RowSampler, draw_keys
from samovar.runtime.engine.port import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# --- against mlx-lm's own -------------------------------------------------------------------------


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Compiling mlx-lm's filters takes a C++ compiler seconds."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.3},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"min_p": 0.4},
        {"top_k": 2},
        {"top_k": 9},
        {"top_p": 0.9, "min_p": 0.03, "top_k": 7},
        {"top_p": 0.5, "min_p": 0.2, "top_k": 30},
    ],
)
@pytest.mark.usefixtures("interpreted")
def test_filters_keep_what_mlx_lm_keeps(options: dict[str, Any]) -> None:
    logprobs = (LOGITS - mx.logsumexp(LOGITS))[None]
    if "top_p" in options:
        logprobs = apply_top_p(logprobs, options["top_p"])
    if "min_p" in options:
        logprobs = apply_min_p(logprobs, options["min_p"])
    if "top_k" in options:
        logprobs = apply_top_k(logprobs, options["top_k"])
    kept = set(np.flatnonzero(np.isfinite(np.array(logprobs[0]))).tolist())
    assert support(temperature=6.0, **options) == kept


@pytest.mark.usefixtures("interpreted")
def test_temperature_sharpens_as_mlx_lm_does_after_the_filters() -> None:
    logprobs = apply_top_k((LOGITS - mx.logsumexp(LOGITS))[None], 3)
    wanted = np.array(mx.softmax(logprobs[0] / 0.6))
    seen = Counter(draw(*(row(temperature=0.6, top_k=3, seed=seed) for seed in range(3000))))
    drawn = np.array([seen[token] for token in range(VOCAB)]) / 3000
    assert np.abs(drawn - wanted).max() < 0.04


@settings(max_examples=15)
@given(
    st.sampled_from([1.0, 0.7, 1.6]),
    st.sampled_from([0.0, 0.8, -0.5]),
    st.sampled_from([0.0, 0.6, -0.2]),
    st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-3, 3), max_size=4),
)
def test_bias_and_penalties_choose_as_mlx_lm_does(
    repetition: float, presence: float, frequency: float, bias: dict[int, float]
) -> None:
    """Their repetition penalty over prompt and output, the other two over the output alone."""
    prompt, steps = [1, 2, 3, 3], 10
    theirs = list[int]()
    for _ in range(steps):
        logits = LOGITS[None] + 0
        for processor in make_logits_processors(bias):
            logits = processor(mx.array(prompt), logits)
        for processor in make_logits_processors(None, repetition, 10**6):
            logits = processor(mx.array([*prompt, *theirs]), logits)
        later = make_logits_processors(None, None, 0, presence, 10**6, frequency, 10**6)
        for processor in later if theirs else []:
            logits = processor(mx.array(theirs), logits)
        theirs.append(int(mx.argmax(logits[0]).item()))
    options = {"presence_penalty": presence, "frequency_penalty": frequency, "logit_bias": bias}
    mine = row(prompt, repetition_penalty=repetition, **options)
    assert [draw(mine)[0] for _ in range(steps)] == theirs
    for cut in range(steps):
        resumed = RowSampler(mine.settings, prompt, theirs[:cut])
        assert draw(resumed) == [theirs[cut]]


@pytest.mark.parametrize(
    "options", [{"temperature": 2.0, "top_k": 1}, {"temperature": 2.0, "top_p": 0.0}, {"min_p": 1.0}]
)
def test_what_leaves_one_token_is_greedy_even_where_two_tie(options: dict[str, Any]) -> None:
    """B029: top_k 1 at any temperature says what temperature 0 says, from its first token on."""
    tied = mx.array([0.0, 3.0, 1.0, 3.0] + [-1.0] * (VOCAB - 4))
    rows = [row(), *(row(**{"temperature": 1.5, "seed": seed, **options}) for seed in range(40))]
    assert set(draw(*rows, logits=tied)) == {1}


def test_four_settings_in_one_batch_are_four_settings_alone() -> None:
    """B029: the first row's settings were used for all."""
    many: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.5, "seed": 7},
        {"temperature": 2.0, "top_k": 1},
        {"temperature": 1.0, "min_p": 0.9, "seed": 3},
    ]
    together, alone = [[row(**options) for options in many] for _ in range(2)]
    for _ in range(6):
        tokens = draw(*together)
        assert tokens == [draw(each)[0] for each in alone]
        assert tokens[0] == tokens[2]
        assert tokens[3] in support(temperature=1.0, min_p=0.9)


def test_keys_of_many_rows_are_those_of_each() -> None:
    """A known value, so that seeds mean the same in every version: splitmix64 in plain integers."""

    def mixed(seed: int, position: int) -> tuple[int, int]:
        mask = 2**64 - 1
        word = (seed * 0xD1342543DE82EF95 + (position + 1) * 0x9E3779B97F4A7C15) & mask
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        word ^= word >> 31
        return word >> 32, word & 0xFFFFFFFF

    seeds, positions = [0, 5, 2**63 + 11, 2**64 - 1], [0, 17, 4095, 2**31]
    keys = draw_keys(np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.uint64))
    assert [tuple(key) for key in keys.tolist()] == [
        mixed(seed, position) for seed, position in zip(seeds, positions, strict=True)
    ]

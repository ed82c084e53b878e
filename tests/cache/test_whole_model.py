"""The whole cache against a naive model: random lives in virtual time on a disk that fails and loses power.

``python -m tests.cache.run --seeds 1000`` runs more of them, and says which seed fails.
"""

from __future__ import annotations

import pytest

from .run import run

GROUPS, SEEDS = 13, 10
"""130 lives of 40 operations, 5,200 in all: in groups, each well below the limit of a test."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_lives_agree_with_the_naive_model(group: int) -> None:
    for seed in range(group * SEEDS, (group + 1) * SEEDS):
        run(seed)


def test_a_seed_replays() -> None:
    """The same operations, and every message handled in the same order, though real threads take part."""
    assert run(7, steps=80) == run(7, steps=80)


NAMED = {
    "what_a_restarted_archive_does_not_find_again_passes_for_durable_no_more": 414,
    "a_file_withdrawn_while_it_is_read_is_not_durable_when_it_comes": 547,
    "a_persisted_of_before_a_restart_of_the_archive_means_nothing": 776,
    "a_flush_before_the_announcements_to_a_restarted_durability_is_not_believed": 146,
    "a_take_during_a_clear_restores_nothing_of_what_is_on_its_way_out": 971,
    "a_folder_that_a_start_cannot_list_is_not_durable_in_ram": 352,
}
"""Seeds that failed once."""


@pytest.mark.parametrize("seed", NAMED.values(), ids=NAMED.keys())
def test_what_went_wrong_once(seed: int) -> None:
    run(seed)

"""B004: a real server process, killed at every kind of file operation and at random moments of its life.

What must hold is in kill_life.py and kill_world.py. SAMOVAR_CRASH_KILLS says how many kills, 20 if unset,
and SAMOVAR_CRASH_SEED which: all that is done, and where it dies, follows from it. `make crash` runs many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .kill_plan import LIVES
from .kill_world import World

if TYPE_CHECKING:
    from pathlib import Path

    from .kill_world import Tally

pytestmark = pytest.mark.timeout(300)


def replay(seed: int, number: int) -> str:
    """Say how to run one world again."""
    settings = f"SAMOVAR_CRASH_SEED={seed} SAMOVAR_CRASH_KILLS={(number + 1) * LIVES}"
    return f"again: {settings} pytest tests/crash/test_process_kill.py -k world{number:03d}"


def test_b004_what_was_acknowledged_survives_every_kill_and_nothing_torn_is_served(
    tmp_path: Path, crash_seed: int, world_number: int, crash_tally: Tally
) -> None:
    world = World(tmp_path, crash_seed, world_number)
    try:
        world.run()
    except BaseException as error:
        error.add_note(replay(crash_seed, world_number))
        raise
    finally:
        crash_tally.add(world.tally)

"""How often the process is killed, and by which chance; what came of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from .kill_plan import LIVES
from .kill_world import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLS = int(os.environ.get("SAMOVAR_CRASH_KILLS", "20"))
SEED = int(os.environ.get("SAMOVAR_CRASH_SEED", "1"))
_TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = Tally()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world_number" in metafunc.fixturenames:
        worlds = range(-(-KILLS // LIVES))
        names = [f"seed{SEED}-world{number:03d}" for number in worlds]
        metafunc.parametrize("world_number", worlds, ids=names)


@pytest.fixture
def crash_seed() -> int:
    return SEED


@pytest.fixture
def crash_tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    tally = Tally()
    yield tally
    request.config.stash[_TALLY].add(tally)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tally = config.stash[_TALLY]
    if not tally.kills:
        return
    terminalreporter.section("killed servers")
    for line in tally.lines():
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"seed {SEED}: SAMOVAR_CRASH_SEED={SEED} SAMOVAR_CRASH_KILLS={KILLS} again")

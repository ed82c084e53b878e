"""What tests of several layers share, and which examples hypothesis tries."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from samovar.runtime.engine.models.sources import DEFAULT_MODEL, parse_source
from samovar.runtime.engine.models.store import ModelStore

# A green run stays green: the same examples every time, and none kept from earlier runs. ``make fuzz`` looks
# for new ones; what it finds becomes a named test or an explicit example. A busy machine is not a bug, so no
# profile judges an example by its time.
settings.register_profile(
    "fixed",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "fuzz",
    derandomize=False,
    deadline=None,
    max_examples=300,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_runtest_setup() -> None:
    """Draw the same random arrays whatever ran before, as pytest-randomly does for ``random``."""
    if core := sys.modules.get("mlx.core"):
        core.random.seed(1)


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model, fetched and converted on first use.

    Kept in the user's cache folder, or in SAMOVAR_TEST_CACHE. The first fetch takes longer than the
    usual limit of a test, so tests that use it set their own timeout.
    """
    cache = os.environ.get("SAMOVAR_TEST_CACHE")
    store = ModelStore(Path(cache) / "models" if cache else None)
    return store.resolve(parse_source(DEFAULT_MODEL))

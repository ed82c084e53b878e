"""What tests of several layers share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from samovar.runtime.engine.sources import DEFAULT_MODEL, parse_source
from samovar.runtime.engine.store import ModelStore


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model, fetched and converted on first use.

    Kept in the user's cache folder, or in SAMOVAR_TEST_CACHE. The first fetch takes longer than the
    usual limit of a test, so tests that use it set their own timeout.
    """
    cache = os.environ.get("SAMOVAR_TEST_CACHE")
    store = ModelStore(Path(cache) / "models" if cache else None)
    return store.resolve(parse_source(DEFAULT_MODEL))

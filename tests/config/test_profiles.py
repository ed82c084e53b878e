"""The files in configs/ are what users copy: they must load, and say what the code says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from samovar.runtime.config import Config, load
from samovar.runtime.config.tree import all_keys

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_every_profile_loads_alone_and_over_the_default(path: Path) -> None:
    assert load([path]).config == load([CONFIGS / "default.toml", path]).config


def test_the_default_profile_is_the_built_in_configuration_in_full() -> None:
    loaded = load([CONFIGS / "default.toml"])
    assert loaded.config == Config()
    assert loaded.warnings == ()
    assert {loaded.origin(spec.dotted).kind for spec in all_keys()} == {"file"}


def test_the_default_profile_has_the_values_users_were_promised() -> None:
    text = (CONFIGS / "default.toml").read_text()
    document = tomllib.loads(text)
    assert document["server"]["port"] == 8080
    assert (document["lanes"]["batch"], document["lanes"]["queue"], document["lanes"]["decode_gap"]) == (
        8,
        64,
        "250ms",
    )
    assert document["cache"]["ram"]["max"] == "8GiB"
    ssd = document["cache"]["ssd"]
    assert (ssd["max"], ssd["free_floor"], ssd["demote_idle"], ssd["verify"]) == (
        "20GiB",
        "5%",
        "300s",
        "fast",
    )
    assert document["server"]["shutdown_timeout"] == "120s"


def test_the_development_profile_stays_on_this_machine_and_can_be_hurt() -> None:
    config = load([CONFIGS / "development.toml"]).config
    assert config.server.host == "127.0.0.1"
    assert config.server.fault_injection
    assert (config.logging.level, config.logging.format) == ("debug", "console")
    assert config.lanes.queue < Config().lanes.queue

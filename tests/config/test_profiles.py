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


LOCAL = ("laptop", "workstation", "linux-gpu", "ci", "default", "development")


def test_every_profile_is_known_here_and_explains_itself() -> None:
    assert {path.stem for path in CONFIGS.glob("*.toml")} == set(LOCAL)
    for path in CONFIGS.glob("*.toml"):
        lines = path.read_text("utf-8").splitlines()
        assert lines[0].startswith("# "), path.name
        assert any(f"configs/{path.name}" in line for line in lines), path.name
        comments = sum(line.startswith("#") for line in lines)
        assert comments >= sum("=" in line and not line.startswith("#") for line in lines) / 2, path.name


@pytest.mark.parametrize("name", LOCAL)
def test_no_profile_warns_opens_the_machine_or_holds_a_key(name: str) -> None:
    loaded = load([CONFIGS / f"{name}.toml"])
    assert loaded.warnings == ()
    assert loaded.config.server.host == "127.0.0.1"
    assert not loaded.config.server.allow_unauthenticated
    assert loaded.config.server.api_keys == loaded.config.server.admin_keys == ()


def test_profiles_differ_in_the_ways_their_users_need() -> None:
    laptop, workstation, gpu, ci = (load([CONFIGS / f"{name}.toml"]).config for name in LOCAL[:4])
    default = Config()
    assert laptop.cache.ram.max < default.cache.ram.max < workstation.cache.ram.max
    assert laptop.cache.ssd.max < default.cache.ssd.max < workstation.cache.ssd.max
    assert laptop.lanes.batch < default.lanes.batch < workstation.lanes.batch < gpu.lanes.batch
    assert workstation.cache.ssd.demote_idle > default.cache.ssd.demote_idle > laptop.cache.ssd.demote_idle
    assert gpu.logging.format == ci.logging.format == "json"
    assert (ci.server.port, ci.cache.ssd.enabled, ci.server.shutdown_timeout) == (0, False, 2.0)

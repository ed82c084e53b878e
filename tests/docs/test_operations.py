"""docs/operations.md tells of what exists: keys, files, metrics, log events, routes."""

from __future__ import annotations

import re
from pathlib import Path

from samovar.runtime.config.reloading import LIVE_KEYS
from samovar.runtime.config.tree import all_keys
from samovar.runtime.metrics import Metrics

from .error_codes import ROOT

TEXT = (ROOT / "docs" / "operations.md").read_text("utf-8")
THREATS = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
FULL_STATS = {
    "ssd_cache": {"degraded": True, "corrupt": 1, "unrecovered": 1},
    "prompt_cache": {"lost": 1},
    "actors": {"restarts": 1},
}


def test_every_key_that_is_named_exists() -> None:
    known = {spec.dotted for spec in all_keys()}
    sections = {name.partition(".")[0] for name in known} | {"cache"}
    for text in (TEXT, THREATS):
        named = set(re.findall(r"`((?:%s)(?:\.[a-z_]+)+)`" % "|".join(sections), text))  # noqa: UP031
        assert {name for name in named if name not in known} == set()


def test_the_keys_that_change_live_are_all_there() -> None:
    reload = TEXT.partition("## Reload")[2].partition("## Watching")[0]
    listed = reload.partition("from then on:")[2].partition("`reloaded`")[0]
    assert set(re.findall(r"`([a-z_.]+)`", listed)) == LIVE_KEYS


def test_every_file_that_is_named_exists() -> None:
    for name in re.findall(r"`((?:deploy|configs)/[\w.-]+)`", TEXT):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"`([\w-]+\.toml)`", TEXT):
        assert (ROOT / "configs" / name).is_file(), name


def test_every_metric_that_is_named_is_exposed() -> None:
    exposed = Metrics().exposition(FULL_STATS).decode()
    for name in set(re.findall(r"`(samovar_[a-z_]+)", TEXT)):
        assert re.search(rf"^# TYPE {name.removesuffix('_total')}", exposed, re.MULTILINE), name


def test_every_log_event_that_is_named_is_written() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "runtime").rglob("*.py"))
    for event in ("ready", "forced", "reloaded", "reload_refused", "reload_needs_restart", "actor_failed"):
        assert f"`{event}`" in TEXT
        assert re.search(rf'_log\.\w+\(\s*"{event}"', source), event


def test_both_pages_stay_readable() -> None:
    for name in ("operations.md", "threat-model.md", "errors.md"):
        lines = Path(ROOT / "docs" / name).read_text("utf-8").splitlines()
        assert not [line for line in lines if len(line) > 125 and not line.startswith("|")]

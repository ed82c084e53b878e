from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.config import Config, ConfigError, load
from samovar.runtime.config.reloading import LIVE_KEYS, plan_reload
from samovar.runtime.config.tree import all_keys, value_of

if TYPE_CHECKING:
    from pathlib import Path

EVERYWHERE = ["server.host=0.0.0.0", "server.api_keys=sk-1"]


def test_taking_the_keys_away_from_a_server_that_others_reach_is_refused() -> None:
    now = load([], {}, EVERYWHERE).config
    inward = load([], {}, ["server.host=127.0.0.1"])
    with pytest.raises(ConfigError) as caught:
        plan_reload(now, inward)
    assert "server.host" in str(caught.value)
    assert "sk-1" not in str(caught.value)


def test_what_differs_is_applied_where_it_can_be_and_named_where_not() -> None:
    now = load([], {}, ["server.port=8081", "server.api_keys=sk-1"]).config
    wanted = load(
        [], {}, ["server.api_keys=sk-2", "logging.level=debug", "lanes.batch=2", "server.port=8082"]
    )
    reload = plan_reload(now, wanted)
    assert reload.applied == ("server.api_keys", "logging.level")
    assert reload.kept == ("server.port", "lanes.batch")
    assert (reload.config.server.api_keys, reload.config.logging.level) == (("sk-2",), "debug")
    assert (reload.config.server.port, reload.config.lanes.batch) == (8081, Config().lanes.batch)
    again = plan_reload(reload.config, wanted)
    assert (again.applied, again.kept) == ((), ("server.port", "lanes.batch"))


def test_nothing_changed_changes_nothing() -> None:
    loaded = load([], {}, EVERYWHERE)
    reload = plan_reload(loaded.config, loaded)
    assert (reload.config, reload.applied, reload.kept) == (loaded.config, (), ())


def test_a_setting_that_was_taken_out_goes_back_to_its_default(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[model]\naliases = ["gpt-4o"]\n')
    now = load([file]).config
    file.write_text("")
    assert plan_reload(now, load([file])).config == Config()
    assert plan_reload(now, load([file])).applied == ("model.aliases",)


def test_every_live_key_exists() -> None:
    assert {spec.dotted for spec in all_keys()} >= LIVE_KEYS


def test_every_other_key_keeps_its_value() -> None:
    now, loaded = Config(), load()
    for spec in all_keys():
        if spec.dotted in LIVE_KEYS or not isinstance(value_of(now, spec.path), int):
            continue
        section = getattr(now, spec.path[0]) if len(spec.path) == 2 else None
        if section is None:
            continue
        other = replace(section, **{spec.path[1]: 12345})
        reload = plan_reload(replace(now, **{spec.path[0]: other}), loaded)
        assert reload.kept == (spec.dotted,)
        assert value_of(reload.config, spec.path) == 12345

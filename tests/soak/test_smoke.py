"""A soak of seconds: one server is crashed in its parts and killed, the next one ends in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .book import Reply, parted
from .disk import vanished
from .life import is_trouble
from .profile import profile
from .run import Soak
from .tally import Tally
from .watch import Counters

if TYPE_CHECKING:
    from pathlib import Path


def reply(text: str, *near: tuple[int, int]) -> Reply:
    return Reply(text, "length", 9, 0, "none", near)


@pytest.mark.parametrize(
    ("recorded", "text", "at"),
    [
        (reply("tea, please"), "tea, planes", 7),
        (reply("tea, please", (8, 9)), "tea, planes", 7),
        (reply("tea, please", (1, 2)), "tea, planes", 7),
        (reply("tea, please"), "tea", 3),
        (reply("tea, please", (7, 8)), "tea, planes", None),
        (reply("tea, please", (5, 6)), "tea, planes", None),
        (reply("tea"), "tea", None),
    ],
)
def test_a_reply_may_part_from_its_record_only_at_a_near_tie(
    recorded: Reply, text: str, at: int | None
) -> None:
    assert parted(recorded, text) == at


def test_a_file_has_vanished_unless_a_longer_one_holds_it() -> None:
    before = frozenset({("a", b"1111"), ("a", b"22222222"), ("b", b"1111")})
    assert sorted(vanished(before, frozenset({("a", b"11113333")}))) == [1, 2]


def test_a_counter_that_goes_backwards_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    counters = Counters(tally)
    for misses in (3, 5, 4):
        counters.look({"prompt_cache": {"misses": misses, "entries": 9 - misses}})
    assert [finding.what for finding in tally.findings] == [
        "the counter prompt_cache.misses went from 5 to 4"
    ]
    assert "FOUND" in capsys.readouterr().out


def test_errors_in_the_log_count_unless_they_were_made_on_purpose() -> None:
    failed = {"event": "actor_failed", "level": "error"}
    assert is_trouble(failed | {"error": "KeyError: 3"})
    assert not is_trouble(failed | {"error": "InjectedCrash: http: crashed on purpose"})
    assert is_trouble({"event": "request_error", "level": "error", "exception": [{"exc_type": "KeyError"}]})
    assert not is_trouble({"event": "request_error", "exception": [{"exc_type": "ActorCrashed"}]})
    assert is_trouble("Traceback (most recent call last):")
    assert not is_trouble({"event": "ready", "level": "info"})


@pytest.mark.timeout(90)  # two starts of the real server on a busy machine
def test_a_real_server_goes_through_crashes_and_a_kill_and_keeps_what_it_promised(tmp_path: Path) -> None:
    soak = Soak(profile("tiny"), seed=4, folder=tmp_path)
    soak.live().run(1.5, "flush and kill", crashes=("lanes", "storage"))
    soak.finish()
    tally = soak.tally
    assert tally.findings == []
    assert tally.mishaps["end by flush and kill"] == tally.mishaps["end by term"] == 1
    assert tally.figures["actors.restarts"] >= 2
    assert sum(count for name, count in tally.notes.items() if name.startswith("promised, from")) > 0
    assert tally.notes["files verified"] > 0

"""What the scheduler does about lanes that end, by itself: which it goes on watching."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from samovar.actors.scheduling.lanewatch import LaneWatch
from samovar.actors.scheduling.places import Places
from samovar.runtime.kernel import Terminated

LANE: Any = SimpleNamespace(ref=object(), rows=lambda _timeout_s: None)


@pytest.mark.parametrize(
    ("reason", "restarting", "again"),
    [("crashed", True, [LANE.ref]), ("stopped", True, [LANE.ref]), ("gone", False, [])],
)
def test_a_lane_that_is_gone_for_good_is_not_watched_again(reason: Any, restarting: bool, again: Any) -> None:
    """Found by the simulation (seed 70000): each watch of one that is gone is answered at once, without end.

    All lanes crashed while the process was stopping; the scheduler span, and nothing else ran any more.
    """
    watched: list[object] = []
    context: Any = SimpleNamespace(watch=watched.append, spawn=lambda *_: None)
    watch = LaneWatch(context, Places([LANE], 2), cast("Any", None), cast("Any", None), lambda: None)
    watch.ended(Terminated(LANE.ref, 1, reason, None, restarting))
    assert watched == again

from __future__ import annotations

from dataclasses import dataclass

import pytest
from samovar.actors.scheduling.backlog import OVERTAKEN_MOST, SHARED_WORTH_TOKENS, Backlog, Prefilling
from samovar.storage.tokens import TokenIds

LONG = list(range(1000, 1000 + 2 * SHARED_WORTH_TOKENS))


@dataclass
class Waiting:
    name: str
    ids: list[int]
    namespace: str = ""
    due_s: float = 0.0
    size: int = 1
    overtaken: int = 0

    @property
    def tokens(self) -> TokenIds:
        return TokenIds.of(self.ids)


def prefilling(ids: list[int], *, cached: int = 0, trims: bool = True, namespace: str = "") -> Prefilling:
    return Prefilling(TokenIds.of(ids), namespace, cached, trims)


def drained(backlog: Backlog[Waiting]) -> list[str]:
    names: list[str] = []
    while (waiting := backlog.next()) is not None:
        names.append(waiting.name)
    return names


def test_first_come_first_served() -> None:
    backlog: Backlog[Waiting] = Backlog()
    for name in "abc":
        backlog.add(Waiting(name, [ord(name)]))
    assert len(backlog) == 3
    assert drained(backlog) == ["a", "b", "c"]
    assert backlog.next() is None


def test_a_request_waits_for_the_prefix_that_another_prefills_and_holds_up_nobody() -> None:
    backlog: Backlog[Waiting] = Backlog()
    backlog.began("first", prefilling([*LONG, 1]))
    backlog.add(Waiting("same", [*LONG, 2, 3]))
    backlog.add(Waiting("other", [5, 6, 7]))
    assert drained(backlog) == ["other"]
    assert len(backlog) == 1
    backlog.published("first")
    assert drained(backlog) == ["same"]


def test_an_end_without_a_publication_strands_nobody() -> None:
    backlog: Backlog[Waiting] = Backlog()
    backlog.began("first", prefilling([*LONG, 1]))
    backlog.add(Waiting("same", [*LONG, 2]))
    assert backlog.next() is None
    backlog.published("first")  # it was cancelled
    backlog.published("first")
    assert drained(backlog) == ["same"]


@pytest.mark.parametrize(
    "row",
    [
        prefilling(LONG[: SHARED_WORTH_TOKENS - 1]),
        prefilling([*LONG, 1], cached=len(LONG) - SHARED_WORTH_TOKENS + 1),
        prefilling([*LONG, 1], namespace="adapter"),
        prefilling([*LONG, 1], trims=False),
    ],
    ids=["too short", "mostly cached anyway", "another namespace", "cannot be shortened"],
)
def test_what_is_not_worth_waiting_for_or_could_not_be_used(row: Prefilling) -> None:
    backlog: Backlog[Waiting] = Backlog()
    backlog.began("first", row)
    backlog.add(Waiting("same", [*LONG, 2]))
    assert drained(backlog) == ["same"]


def test_a_state_that_cannot_be_shortened_is_waited_for_where_it_fits_whole() -> None:
    backlog: Backlog[Waiting] = Backlog()
    backlog.began("first", prefilling(LONG, trims=False))
    backlog.add(Waiting("longer", [*LONG, 2]))
    assert backlog.next() is None


def test_the_very_same_prompt_may_use_all_but_its_last_token() -> None:
    backlog: Backlog[Waiting] = Backlog()
    ids = LONG[: SHARED_WORTH_TOKENS + 1]
    backlog.began("first", prefilling(ids))
    backlog.add(Waiting("same", ids))
    assert backlog.next() is None
    backlog.began("first", prefilling(ids, cached=1))
    assert drained(backlog) == ["same"]


def test_leavers_are_dropped_and_counted() -> None:
    backlog: Backlog[Waiting] = Backlog()
    for name in "abc":
        backlog.add(Waiting(name, [1]))
    assert backlog.drop(lambda waiting: waiting.name in "ac") == 2
    assert [waiting.name for waiting in backlog] == ["b"]


def test_who_is_due_earlier_goes_first_and_equals_in_the_order_in_which_they_came() -> None:
    backlog: Backlog[Waiting] = Backlog()
    for name, due_s in (("default", 30.0), ("flex", 300.0), ("priority", 1.0), ("default too", 30.0)):
        backlog.add(Waiting(name, [1], due_s=due_s))
    backlog.add(Waiting("late priority", [1], due_s=301.0))
    assert drained(backlog) == ["priority", "default", "default too", "flex", "late priority"]


def test_one_that_does_not_fit_is_overtaken_but_not_for_ever() -> None:
    backlog: Backlog[Waiting] = Backlog()
    backlog.add(Waiting("huge", [1], size=100))
    for n in range(OVERTAKEN_MOST + 3):
        backlog.add(Waiting(f"small {n}", [1]))
    names: list[str] = []
    while (waiting := backlog.next(lambda each: each.size < 10)) is not None:
        names.append(waiting.name)
    assert names == [f"small {n}" for n in range(OVERTAKEN_MOST)]
    assert len(backlog) == 4
    assert drained(backlog)[0] == "huge"


def test_who_waits_for_a_prefix_is_not_overtaken_by_size() -> None:
    backlog: Backlog[Waiting] = Backlog()
    backlog.began("first", prefilling([*LONG, 1]))
    backlog.add(Waiting("same", [*LONG, 2], size=100))
    backlog.add(Waiting("small", [1]))
    first = backlog.next(lambda each: each.size < 10)
    assert first is not None
    assert first.name == "small"
    assert [each.overtaken for each in backlog] == [0]

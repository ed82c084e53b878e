from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.kernel.places import ThreadPlaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 10.0


class Stage:
    """Runs jobs and says on which thread each ran."""

    def __init__(self, idle_limit: int) -> None:
        self.places = ThreadPlaces(idle_limit)
        self.ended: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()

    def run(self, name: str, work: Callable[[], object] = lambda: None) -> None:
        def job() -> Callable[[], None]:
            work()
            return lambda: self.ended.put(threading.current_thread())

        self.places.run(name, job)

    def thread(self) -> threading.Thread:
        """Return the thread of the job that ended next."""
        return self.ended.get(timeout=PATIENCE_S)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage(2)
    yield stage
    stage.places.close()


def test_a_name_keeps_its_thread_and_takes_no_other_ones(stage: Stage) -> None:
    threads: dict[str, set[threading.Thread]] = {"a": set(), "b": set()}
    for name in "abba" * 25:
        stage.run(name)
        threads[name].add(stage.thread())
    (first,), (second,) = threads["a"], threads["b"]
    assert first is not second
    assert (first.name, second.name) == ("a", "b")


def test_a_job_never_waits_for_another_one_of_its_name(stage: Stage) -> None:
    go = threading.Event()
    stage.run("a", lambda: go.wait(PATIENCE_S))
    stage.run("a")
    second = stage.thread()
    go.set()
    assert stage.thread() is not second


def test_who_learns_of_the_end_finds_the_thread_idle(stage: Stage) -> None:
    def job() -> Callable[[], None]:
        return lambda: stage.run("a")

    first: list[threading.Thread] = []
    stage.run("a", lambda: first.append(threading.current_thread()))
    stage.thread()
    stage.places.run("a", job)
    assert stage.thread() is first[0]


def test_threads_past_the_limit_end(stage: Stage) -> None:
    threads: list[threading.Thread] = []
    for name in "abc":
        stage.run(name)
        threads.append(stage.thread())
    threads[2].join(PATIENCE_S)
    assert [thread.is_alive() for thread in threads] == [True, True, False]


def test_an_idle_thread_holds_nothing_of_what_ran_on_it(stage: Stage) -> None:
    class Held:
        """Stands for a batch and its buffers."""

    held, gone = Held(), threading.Event()
    weakref.finalize(held, gone.set)
    stage.run("a", lambda held=held: held)
    del held
    stage.thread()
    assert gone.wait(PATIENCE_S)


def test_closing_ends_idle_threads_at_once_and_others_with_their_jobs(stage: Stage) -> None:
    go = threading.Event()
    stage.run("idle")
    idle = stage.thread()
    stage.run("busy", lambda: go.wait(PATIENCE_S))
    stage.places.close()
    stage.places.close()
    idle.join(PATIENCE_S)
    assert not idle.is_alive()
    go.set()
    busy = stage.thread()
    busy.join(PATIENCE_S)
    assert not busy.is_alive()

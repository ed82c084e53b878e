from __future__ import annotations

import threading

import pytest
from samovar.storage.checksums import MAX_WAITING_JOBS, HashLane, digest_of

WAYS = pytest.mark.parametrize("threaded", [True, False])


@WAYS
@pytest.mark.parametrize("bad", [0, 1, 40, 99])
def test_the_first_failure_leaves_and_nothing_runs_after_it(bad: int, *, threaded: bool) -> None:
    ran: list[int] = []

    def job(number: int) -> None:
        if number >= bad:
            raise ZeroDivisionError(number)
        ran.append(number)

    def hundred_jobs() -> None:
        with HashLane(threaded=threaded) as lane:
            for number in range(100):
                lane.run(lambda number=number: job(number))
            lane.finish()

    with pytest.raises(ZeroDivisionError, match=f"^{bad}$"):
        hundred_jobs()
    assert ran == list(range(bad))
    assert not hash_threads()


@WAYS
def test_jobs_run_in_order_whoever_runs_them(*, threaded: bool) -> None:
    ran: list[int] = []
    with HashLane(threaded=threaded) as lane:
        for number in range(3000):
            lane.run(lambda number=number: ran.append(number))
        lane.finish()
        assert ran == list(range(3000))
    assert not hash_threads()


def test_a_caller_far_ahead_does_the_work_of_a_thread_that_gets_no_core() -> None:
    ran: list[int] = []
    lane = HashLane(threaded=True)  # its thread starts with the block: until then it is one that gets no core
    for number in range(10):
        lane.run(lambda number=number: ran.append(number))
        assert ran == list(range(number + 1 - MAX_WAITING_JOBS))
    with lane:
        lane.finish()
    assert ran == list(range(10))


def test_leaving_early_throws_what_waits_away() -> None:
    def leave() -> None:
        with HashLane(threaded=True) as lane:
            lane.run(lambda: None)
            raise KeyError

    with pytest.raises(KeyError):
        leave()
    assert not hash_threads()


def test_checksums_are_those_of_their_algorithms() -> None:
    pieces = [memoryview(b"ab"), memoryview(b""), memoryview(b"c")]
    assert digest_of("xxh3-128", pieces) == "06b05ab6733a618578af5f94892f3950"
    assert digest_of("blake3-128", pieces) == "6437b3ac38465133ffb63b75273a8db5"
    assert digest_of("xxh3-128", []) == "99aa06d3014798d86001c324468d497f"


def hash_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "hash"]

"""Power lost, or the process killed, at every operation of the directory's life and of its recovery.

What is checked after each is in ledger.py: every acknowledged checkpoint that was not removed on purpose is
served byte for byte, nothing torn is, orphans are swept, the root is within its cap, what was cleared is
away.
"""

from __future__ import annotations

import pytest

from tests.kit.disk import FaultDisk
from tests.kit.faults import Operation, PowerLoss

from .ledger import Workload, check, covered, go_on

CHANGES = frozenset(
    {"create", "write", "sync", "rename", "unlink", "remove_folder", "make_folder", "sync_folder", "touch"}
)
"""Between two of these the disk does not change, so neither does what a crash leaves."""


def _operations() -> int:
    workload = Workload(FaultDisk())
    workload.run()
    return workload.disk.count


@pytest.mark.timeout(60)  # a whole workload for each operation: two seconds of work
def test_b004_power_lost_before_every_operation_stops_the_code_there_and_loses_nothing_acknowledged() -> None:
    total = _operations()
    assert total > 140
    for nth in range(1, total + 1):
        workload = Workload(FaultDisk())
        workload.disk.stop_at(nth)
        with pytest.raises(PowerLoss):
            workload.run()
        assert workload.disk.count == nth, "something went on without power"
        check(workload.disk.crash(nth), workload.ledger)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_power_loss_leaves_of_unsynced_changes_is_recovered(seed: int) -> None:
    workload = Workload(FaultDisk())
    checked = 0

    def crash_here(operation: Operation) -> None:
        nonlocal checked
        for chance in range(5 if operation.kind == "sync_folder" else operation.kind in CHANGES):
            check(workload.disk.crash(seed + 10 * chance + 1000 * operation.index), workload.ledger)
            checked += 1
        workload.watch(operation)

    workload.disk.hook = crash_here
    workload.run()
    check(workload.disk.crash(seed), workload.ledger)
    assert checked > 100


def test_a_process_killed_at_every_operation_loses_nothing_and_what_a_start_finds_is_durable() -> None:
    workload = Workload(FaultDisk())

    def kill_here(operation: Operation) -> None:
        if operation.kind in CHANGES:
            after = workload.disk.kill()
            check(after, workload.ledger)
            found = covered(after)
            assert covered(after.crash(operation.index)) >= found, (
                "found at a start, lost by the next power loss"
            )
        workload.watch(operation)

    workload.disk.hook = kill_here
    workload.run()


@pytest.mark.parametrize("seed", range(3))
def test_power_lost_again_at_every_operation_of_recovery(seed: int) -> None:
    workload = Workload(FaultDisk())
    checked = 0

    def crash_here(operation: Operation) -> None:
        if operation.kind in CHANGES and operation.index % 5 == seed:
            crash_recovery(workload.disk.crash(operation.index), operation.index)
        workload.watch(operation)

    def crash_recovery(first: FaultDisk, index: int) -> None:
        nonlocal checked
        ledger = workload.ledger

        def crash_again(operation: Operation) -> None:
            nonlocal checked
            if operation.kind in CHANGES:
                check(first.crash(index * 1000 + operation.index), ledger)
                checked += 1

        first.hook = crash_again
        covered(first)
        first.hook = None
        check(first, ledger)

    workload.disk.hook = crash_here
    workload.run_little()
    assert checked > 50


def test_a_recovered_disk_takes_new_checkpoints() -> None:
    for nth in range(5, _operations(), 7):
        workload = Workload(FaultDisk())
        workload.disk.stop_at(nth)
        with pytest.raises(PowerLoss):
            workload.run()
        after = workload.disk.crash(nth)
        go_on(after)

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from samovar.runtime.kernel import ActorSystem, AskCycle, AskTimeout

from tests.kernel.stage import Get, Ping, Worker, root, worker
from tests.kit import KitSystem, virtual


def chain(refs: list[Any]) -> Get:
    """Ask the first, whose handler asks the second, and so on; the last ask's error name comes back."""

    async def body(actor: Worker) -> str:
        if not refs:
            return "no cycle"
        try:
            return str(await refs[0].ask(chain(refs[1:]), 10.0))
        except AskCycle as error:
            return f"cycle at {error.path}"

    return Get(body)


@virtual
async def test_a_self_ask_fails_at_once() -> None:
    a = worker("a")
    async with KitSystem(root(a)) as kit:
        assert await a.ref.ask(chain([a.ref]), 10.0) == "cycle at a"
        assert kit.system.now_s() == 0.0


@virtual
async def test_a_cycle_of_two_fails_at_once() -> None:
    a, b = worker("a"), worker("b")
    async with KitSystem(root(a, b)) as kit:
        assert await a.ref.ask(chain([b.ref, a.ref]), 10.0) == "cycle at a"
        assert kit.system.now_s() == 0.0


@virtual
async def test_a_cycle_of_three_fails_at_once() -> None:
    a, b, c = worker("a"), worker("b"), worker("c")
    async with KitSystem(root(a, b, c)) as kit:
        assert await a.ref.ask(chain([b.ref, c.ref, a.ref]), 10.0) == "cycle at a"
        assert kit.system.now_s() == 0.0


@virtual
async def test_two_chains_that_close_a_cycle_between_them_fail_at_once() -> None:
    a, b = worker("a"), worker("b")

    def slowly_then(other: Any) -> Get:
        async def body(actor: Worker) -> str:
            await asyncio.sleep(1.0)
            try:
                return str(await other.ask(Ping(1), 10.0))
            except AskCycle as error:
                return f"cycle at {error.path}"

        return Get(body)

    async with KitSystem(root(a, b)) as kit:
        first = asyncio.ensure_future(a.ref.ask(slowly_then(b.ref), 20.0))
        second = asyncio.ensure_future(b.ref.ask(slowly_then(a.ref), 20.0))
        answers = await asyncio.gather(first, second)
        # The second to ask is refused; the first is then served.
        assert sorted(answers) == ["1", "cycle at a"]
        assert kit.system.now_s() == 1.0


@virtual
async def test_concurrent_asks_of_one_handler_are_no_cycle_and_leave_no_trace() -> None:
    a, b, c = worker("a"), worker("b"), worker("c")

    async def both(actor: Worker) -> list[int]:
        return await asyncio.gather(b.ref.ask(Ping(1), 1.0), b.ref.ask(Ping(2), 1.0), c.ref.ask(Ping(3), 1.0))

    async with KitSystem(root(a, b, c)):
        assert await a.ref.ask(Get(both), 1.0) == [1, 2, 3]
        assert await b.ref.ask(chain([a.ref]), 1.0) == "no cycle"


@virtual
async def test_without_the_detector_a_cycle_ends_at_its_deadline() -> None:
    a = worker("a")

    async def ask_self(actor: Worker) -> str:
        with pytest.raises(AskTimeout):
            await a.ref.ask(Ping(1), 1.0)
        return "timeout"

    system = ActorSystem(root(a), detect_cycles=False)
    await system.start()
    assert await a.ref.ask(Get(ask_self), 10.0) == "timeout"
    await system.stop()

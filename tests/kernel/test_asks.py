from __future__ import annotations

from dataclasses import dataclass

import pytest
from samovar.runtime.kernel import Actor, ActorCrashed, Ask, AskTimeout, ChildSpec, SupervisorSpec

from tests.kit import KitSystem, Probe, virtual


@dataclass(frozen=True, slots=True)
class Ping(Ask[int]):
    value: int


class Echo(Actor[Ping]):
    async def receive(self, message: Ping) -> None:
        self.ctx.reply(message, message.value)


@virtual
async def test_a_reply_is_returned() -> None:
    echo = ChildSpec("echo", Echo, capacity=10)
    async with KitSystem(SupervisorSpec("root", [echo])):
        assert await echo.ref.ask(Ping(7), 1.0) == 7


@virtual
async def test_no_reply_before_the_deadline_is_a_timeout() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        with pytest.raises(AskTimeout, match="Ping to probe"):
            await probe.ref.ask(Ping(1), 0.5)
        assert 0.5 <= kit.system.now_s() < 0.52


@virtual
async def test_the_ask_in_hand_at_a_crash_fails_and_the_actor_returns() -> None:
    echo = ChildSpec("echo", Echo, capacity=10)
    async with KitSystem(SupervisorSpec("root", [echo])) as kit:
        kit.crash_on(echo.ref, Ping)
        with pytest.raises(ActorCrashed):
            await echo.ref.ask(Ping(1), 1.0)
        await kit.settle()
        kit.failure("echo")
        kit.dead_letter("echo", "crashed")
        assert await echo.ref.ask(Ping(2), 1.0) == 2
        assert kit.figures(echo.ref).restarts == 1

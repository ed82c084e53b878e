"""Runs random lives of the whole cache: ``python -m tests.cache.run --seeds 1000 [--first 0] [--steps 40]``.

One seed is one run, the same every time: the operations, the faults and the order of the threads follow from
it. A seed that fails is printed with what was done before.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import traceback
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from .life import ACTORS, FAULTS, KINDS, LOSING, Life
from .states import NAMESPACES, Key
from .turns import TurnLoop, Turns
from .whole import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 40
CALM_EVERY = 12


@dataclass
class Driver:
    """Chooses operations by ``chance``, from ever the same few conversations."""

    life: Life
    chance: Random
    known: list[Key] = field(default_factory=lambda: [("", (1,))])
    log: list[str] = field(default_factory=list)

    def trace(self) -> list[str]:
        """Return what was done, and the messages that were handled by it."""
        return [*self.log, *self.life.heard]

    def key(self, *, known: float = 0.15) -> Key:
        """Return a key that goes on from a known one, branches off it, or is one."""
        chance = self.chance
        namespace, ids = chance.choice(self.known)
        if chance.random() > known:
            if chance.random() < 0.2:
                namespace = chance.choice(NAMESPACES)
            cut = len(ids) if chance.random() < 0.7 else chance.randint(0, len(ids))
            grown = ids[:cut] + tuple(chance.randint(0, 2) for _ in range(chance.randint(1, 4)))
            ids = grown if len(grown) <= 20 else grown[-3:]
        self.known = [*self.known, (namespace, ids)][-12:]
        return namespace, ids

    def prompt(self) -> Key:
        namespace, ids = self.chance.choice(self.known)
        if self.chance.random() < 0.2:
            ids = ids[: self.chance.randint(1, len(ids))]
        return namespace, ids + tuple(self.chance.randint(0, 2) for _ in range(self.chance.randint(0, 3)))

    def session(self) -> str | None:
        return self.chance.choice([None, None, None, "s", "t"])

    def shape(self) -> Shape:
        chance = self.chance
        ram = chance.choice([50_000, 150_000, 400_000])
        return Shape(
            ram_bytes=ram,
            hard_bytes=int(ram * chance.choice([1.0, 1.5, 4.0])),
            ssd_bytes=chance.choice([0, 0, 400_000, 1_000_000]),
            writers=chance.choice([1, 2, 3]),
            readers=chance.choice([1, 2]),
            write_behind=chance.random() < 0.8,
            demote_idle_s=chance.choice([0.0, 60.0, 300.0]),
        )

    async def step(self) -> None:
        """Do one thing, then let a little, or nothing at all, happen."""
        (name,) = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        self.log.append(name)
        await getattr(self, name)()
        await self.breathe()

    async def breathe(self) -> None:
        match self.chance.randint(0, 5):
            case 0 | 1:
                return
            case 2 | 3:
                for _ in range(self.chance.randint(1, 20)):
                    await asyncio.sleep(0)
            case 4:
                await asyncio.sleep(self.chance.uniform(0.0, 0.05))
            case _:
                await self.life.whole.kit.settle()

    # -- operations

    async def put(self) -> None:
        for _ in range(self.chance.choice([1, 1, 2, 4])):
            self.say(self.key(), self.life.put, self.session())

    def say(self, key: Key, act: Callable[..., Any], *arguments: Any) -> Any:
        self.log[-1] += f" {key}"
        return act(key, *arguments)

    async def take(self) -> None:
        await self.say(self.prompt(), self.life.take, self.session())

    async def borrow(self) -> None:
        await self.life.take(self.prompt(), self.session(), hold=True)

    async def read_your_write(self) -> None:
        key = self.key()
        self.life.put(key)
        self.log[-1] += f" {key}"
        taken = await self.life.take((key[0], (*key[1], 9)))
        rough = self.life.rough or self.life.shape.hard_bytes < 400_000
        assert rough or (taken is not None and taken.length >= len(key[1])), (key, taken)

    async def take_beside(self) -> None:
        prompt = self.prompt()
        self.log[-1] += f" {prompt}"
        for _ in range(self.chance.randint(1, 5)):
            self.life.meanwhile(self.life.take(prompt if self.chance.random() < 0.6 else self.prompt()))

    async def take_and_leave(self) -> None:
        self.life.meanwhile(self.life.take_and_leave(self.prompt(), self.chance.randint(0, 60)))

    async def release(self) -> None:
        self.life.release(self.chance.randint(0, 1000))

    async def flush(self) -> None:
        await self.life.flush(self.chance.choice([0.0, 0.05, 5.0, 900.0]))

    async def flush_beside(self) -> None:
        self.life.meanwhile(self.life.flush(self.chance.choice([0.0, 1.0, 900.0])))

    async def pass_time(self) -> None:
        await self.life.pass_time(self.chance.choice([0.3, 5.0, 70.0, 400.0]))

    async def drain(self) -> None:
        await self.life.drain()

    async def clear(self) -> None:
        await self.say(self.chance.choice(["ram", "ssd", "all"]), self.life.clear)  # type: ignore[arg-type]

    async def clear_amid(self) -> None:
        """Clear while others read and write."""
        self.life.pace(self.chance.choice([0.0, 0.001, 0.05]))
        await self.put()
        await self.take_beside()
        await self.breathe()
        await self.clear()

    async def close_session(self) -> None:
        await self.life.close_session(self.chance.choice("st"))

    async def press(self) -> None:
        await self.life.press(self.chance.choice([0, 40_000, 1_000_000]))

    async def fault(self) -> None:
        kind, number = self.chance.choice(self.chance.choice([FAULTS, LOSING]))
        often, times = self.chance.choice([0.3, 1.0]), self.chance.choice([1, 2, None])
        self.log[-1] += f" {kind} {number} {often} {times}"
        self.life.fault(kind, number, often, times)

    async def fill_up(self) -> None:
        self.life.fill_up(self.chance.choice([0, 50_000, 200_000]))

    async def shorten(self) -> None:
        self.life.shorten(*self.chance.sample([None, 4096, 7000], 2))

    async def slow(self) -> None:
        self.life.pace(self.chance.choice([0.001, 0.05, 2.0, 40.0]))

    async def heal(self) -> None:
        self.life.heal()

    async def crash(self) -> None:
        which = self.chance.choice(ACTORS)
        self.log[-1] += f" {which}"
        if which == "storage/archive":
            self.life.heal()  # its start may meet faults elsewhere: a start that fails ends the process
        await self.life.crash(which)

    async def crash_borrower(self) -> None:
        await self.borrow()
        await self.life.crash("serving/borrower")

    async def crash_on(self) -> None:
        which = self.chance.choice([one for one in ACTORS if KINDS[one]])
        kind = self.chance.choice(KINDS[which])
        self.log[-1] += f" {which} {kind.__name__}"
        self.life.crash_on(which, kind)

    async def crash_writer(self) -> None:
        self.life.crash_writer()

    async def rot(self) -> None:
        self.life.rot(self.chance.randint(0, 1000), self.chance.randint(0, 1 << 20))

    async def restart(self) -> None:
        how = self.chance.choice(["stop", "kill", "power"])
        self.log[-1] += f" {how}"
        shape = self.shape() if self.chance.random() < 0.3 else None
        await self.life.restart(how, self.chance.randint(0, 1 << 30), shape=shape)

    async def calm(self) -> None:
        await self.life.calm()
        for _ in range(3):
            await self.life.exact(self.prompt())
        await self.life.calm()


WEIGHTS = {
    "put": 30,
    "take": 20,
    "borrow": 7,
    "release": 6,
    "read_your_write": 5,
    "take_beside": 8,
    "take_and_leave": 5,
    "flush": 4,
    "flush_beside": 4,
    "pass_time": 4,
    "drain": 1,
    "clear": 1.5,
    "clear_amid": 1.5,
    "close_session": 1,
    "press": 1.5,
    "fault": 4,
    "fill_up": 1,
    "shorten": 1,
    "slow": 3,
    "heal": 3,
    "crash": 3,
    "crash_borrower": 1,
    "crash_on": 2,
    "crash_writer": 1,
    "rot": 1,
    "restart": 4,
}


class Failed(AssertionError):
    """A run went wrong."""


def run(seed: int, steps: int = STEPS) -> list[str]:
    """Live one life, and return what was done and handled. Raises Failed, which names the seed."""
    chance = Random(seed)
    turns = Turns(Random(chance.random()))
    with turns.installed(), asyncio.Runner(loop_factory=lambda: TurnLoop(turns)) as runner:
        loop: Any = runner.get_loop()
        driver = Driver(Life(turns, seed, Shape()), chance)
        driver.life.shape = driver.shape()
        try:
            runner.run(_lived(driver, steps))
            gc.collect(1)
            assert not loop.errors, f"errors nobody handled: {loop.errors}"
        except BaseException as error:
            turns.abandon()
            done = "\n  ".join(driver.log)
            raise Failed(f"seed {seed} after\n  {done}\n{driver.life.shape}: {error!r}") from error
    return driver.trace()


async def _lived(driver: Driver, steps: int) -> None:
    await driver.life.start()
    for step in range(steps):
        await driver.step()
        if step % CALM_EVERY == CALM_EVERY - 1:
            await driver.calm()
    await driver.life.finish()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(arguments)
    failed, operations, begun_s = [], 0, time.perf_counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            run(seed, options.steps)
            operations += options.steps
        except Failed:
            failed.append(seed)
            traceback.print_exc()
    elapsed_s = time.perf_counter() - begun_s
    print(f"{options.seeds} seeds, {operations} operations in {elapsed_s:.1f} s; failed: {failed or 'none'}")  # noqa: T201
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

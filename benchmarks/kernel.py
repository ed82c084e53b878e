"""Asks and tells of the actor kernel beside asyncio.Queue, pykka, thespian and xoscar, in one run.

    python -m benchmarks.kernel [--json PATH] [--rounds 12]

Every number is the median over the rounds of the microseconds that one message took in a burst of 1,000;
the contenders take turns within a round, and the collector runs only between bursts. Every handler does the
same: it returns the value it was asked with, or adds the value it was told to a sum. Messages are built
beforehand, so transport is measured; a burst of tells lasts until the last of them was handled. Takes
under a minute.

- ``ask``: one at a time. ``ask64``: 64 in flight. ``tell``: as above.
- asyncio.Queue: put + get with a consumer task; its ask carries a future in the queue.
- pykka: ThreadingActor, so it leaves the loop out and pays for thread switches.
- thespian: ``simpleSystemBase``, in this process and thread: its ask runs the handler before it returns, so
  there is nothing to have in flight.
- xoscar: one pool in this process (``n_process=0``), called as anybody outside the pool has to.
- xoscar local: the same, called from another actor of the pool through a LocalActorRef. That is a direct
  call of the method under the actor's lock: no queue between the two, no deadline. It is shown for what it
  is and left out of "the fastest actor library" for asks; the ratio to it stands in a line of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.metadata
import os
import platform
import statistics
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson
import pykka
import thespian.actors as thespian
import uvloop
import xoscar
from samovar.runtime.kernel import Actor, ActorSystem, Ask, ChildSpec, SupervisorSpec

BURST = 1_000
IN_FLIGHT = 64
VALUES = range(BURST)
TIMEOUT_S = 5.0
LIBRARIES = ("pykka", "thespian", "xoscar")
MEASURES = ("ask", "ask64", "tell")

Burst = Callable[[], Awaitable[None]]


async def in_flight(ask: Callable[..., Awaitable[Any]], messages: Sequence[Any], *more: float) -> None:
    """Send a burst of asks from 64 tasks."""

    async def asker(share: Sequence[Any]) -> None:
        for message in share:
            await ask(message, *more)

    await asyncio.gather(*(asker(messages[first::IN_FLIGHT]) for first in range(IN_FLIGHT)))


# -- this kernel ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Echo(Ask[int]):
    """Answered with its value."""

    value: int


@dataclass(frozen=True, slots=True)
class Add:
    """Added to the sum."""

    value: int


class Samovar(Actor[Echo | Add]):
    """This kernel's contender."""

    def __init__(self) -> None:
        self.sum = 0

    async def receive(self, message: Echo | Add) -> None:
        """Answer or add."""
        if isinstance(message, Echo):
            self.ctx.reply(message, message.value)
        else:
            self.sum += message.value


async def samovar() -> tuple[dict[str, Burst], Burst]:
    spec = ChildSpec[Echo | Add]("echo", Samovar, capacity=BURST + IN_FLIGHT)
    system = ActorSystem(SupervisorSpec("root", [spec]))
    await system.start()
    ref = spec.ref
    asks, tells = [Echo(value) for value in VALUES], [Add(value) for value in VALUES[1:]]

    async def ask() -> None:
        for message in asks:
            await ref.ask(message, TIMEOUT_S)

    async def ask64() -> None:
        await in_flight(ref.ask, asks, TIMEOUT_S)

    async def tell() -> None:
        for message in tells:
            ref.tell(message)
        await ref.ask(asks[0], TIMEOUT_S)

    async def stop() -> None:
        await system.stop()

    return {"ask": ask, "ask64": ask64, "tell": tell}, stop


# -- asyncio.Queue ----------------------------------------------------------------------------------------


async def queue() -> tuple[dict[str, Burst], Burst]:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[int, asyncio.Future[int] | None]] = asyncio.Queue(BURST + IN_FLIGHT)
    tells = [(value, None) for value in VALUES[1:]]
    total = 0

    async def consume() -> None:
        nonlocal total
        while True:
            value, answer = await waiting.get()
            if answer is not None:
                answer.set_result(value)
            else:
                total += value

    consumer = loop.create_task(consume())

    async def one(value: int) -> int:
        answer: asyncio.Future[int] = loop.create_future()
        await waiting.put((value, answer))
        return await answer

    async def ask() -> None:
        for value in VALUES:
            await one(value)

    async def tell() -> None:
        for message in tells:
            await waiting.put(message)
        await one(0)

    async def stop() -> None:
        consumer.cancel()
        await asyncio.wait({consumer})

    return {"ask": ask, "ask64": lambda: in_flight(one, VALUES), "tell": tell}, stop


# -- the libraries ------------------------------------------------------------------------------------------


class Pykka(pykka.ThreadingActor):
    """pykka's contender."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = 0

    def on_receive(self, message: tuple[str, int]) -> int | None:
        """Answer or add."""
        kind, value = message
        if kind == "echo":
            return value
        self.sum += value
        return None


async def pykka_actor() -> tuple[dict[str, Burst], Burst]:
    ref = Pykka.start()
    asks, tells = [("echo", value) for value in VALUES], [("add", value) for value in VALUES[1:]]

    async def ask() -> None:
        for message in asks:
            ref.ask(message, timeout=TIMEOUT_S)

    async def ask64() -> None:
        open_asks = deque(ref.ask(message, block=False) for message in asks[:IN_FLIGHT])
        for message in asks[IN_FLIGHT:]:
            open_asks.popleft().get(timeout=TIMEOUT_S)
            open_asks.append(ref.ask(message, block=False))
        for answer in open_asks:
            answer.get(timeout=TIMEOUT_S)

    async def tell() -> None:
        for message in tells:
            ref.tell(message)
        ref.ask(asks[0], timeout=TIMEOUT_S)

    async def stop() -> None:
        ref.stop()

    return {"ask": ask, "ask64": ask64, "tell": tell}, stop


class Thespian(thespian.Actor):
    """thespian's contender."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = 0

    def receiveMessage(self, message: Any, sender: Any) -> None:  # noqa: N802 - thespian's name
        """Answer or add."""
        if not isinstance(message, tuple):
            return
        kind, value = message
        if kind == "echo":
            self.send(sender, value)
        else:
            self.sum += value


async def thespian_actor() -> tuple[dict[str, Burst], Burst]:
    system = thespian.ActorSystem("simpleSystemBase")
    address = system.createActor(Thespian)
    asks, tells = [("echo", value) for value in VALUES], [("add", value) for value in VALUES[1:]]

    async def ask() -> None:
        for message in asks:
            system.ask(address, message, TIMEOUT_S)

    async def tell() -> None:
        for message in tells:
            system.tell(address, message)
        system.ask(address, asks[0], TIMEOUT_S)

    async def stop() -> None:
        system.shutdown()

    return {"ask": ask, "tell": tell}, stop


class Xoscar(xoscar.Actor):
    """xoscar's contender."""

    def __init__(self) -> None:
        self.sum = 0

    async def echo(self, value: int) -> int:
        """Answer."""
        return value

    async def add(self, value: int) -> None:
        """Add."""
        self.sum += value


class XoscarCaller(xoscar.StatelessActor):
    """Runs the bursts inside the pool, where refs are local."""

    async def burst(self, name: str) -> None:
        """Run one burst."""
        ref = await xoscar.actor_ref(address=self.address, uid="echo")
        await xoscar_bursts(ref)[name]()


def xoscar_bursts(ref: Any) -> dict[str, Burst]:
    async def ask() -> None:
        for value in VALUES:
            await ref.echo(value)

    async def tell() -> None:
        for value in VALUES[1:]:
            await ref.add.tell(value)
        await ref.echo(0)

    return {"ask": ask, "ask64": lambda: in_flight(ref.echo, VALUES), "tell": tell}


async def xoscar_actor() -> tuple[dict[str, Burst], Burst]:
    pool = await xoscar.create_actor_pool("127.0.0.1:0", n_process=0)
    address = pool.external_address
    ref = await xoscar.create_actor(Xoscar, address=address, uid="echo")
    caller = await xoscar.create_actor(XoscarCaller, address=address, uid="caller")
    bursts = xoscar_bursts(ref)

    def locally(name: str) -> Burst:
        return lambda: caller.burst(name)

    return bursts | {f"{name} local": locally(name) for name in bursts}, pool.stop


CONTENDERS = {
    "samovar": samovar,
    "asyncio.Queue": queue,
    "pykka": pykka_actor,
    "thespian": thespian_actor,
    "xoscar": xoscar_actor,
}


# -- measuring ----------------------------------------------------------------------------------------------


async def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return microseconds a message, by contender and measure."""
    built = {name: await build() for name, build in CONTENDERS.items()}
    bursts = [(name, kind, burst) for name, (kinds, _) in built.items() for kind, burst in kinds.items()]
    taken: dict[tuple[str, str], list[float]] = {(name, kind): [] for name, kind, _ in bursts}
    for _, _, burst in bursts:
        await burst()  # warm up
    for turn in range(rounds):
        gc.collect()
        gc.disable()
        # Whoever comes first in a round differs from round to round.
        for name, kind, burst in bursts[turn % len(bursts) :] + bursts[: turn % len(bursts)]:
            begun = perf_counter()
            await burst()
            taken[name, kind].append((perf_counter() - begun) / BURST * 1e6)
        gc.enable()
    for _, stop in built.values():
        await stop()
    results: dict[str, dict[str, float]] = {}
    for (name, kind), times in taken.items():
        measured, _, local = kind.partition(" ")
        row = results.setdefault(f"{name} {local}" if local else name, {})
        row[measured] = round(statistics.median(times), 3)
    return results


def ratios(results: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return how many times faster this kernel is (above 1: it is the faster one)."""
    ours = results["samovar"]
    fastest = min(results[name]["ask"] for name in LIBRARIES)
    # thespian has nothing to have in flight: its one ask at a time stands for its many.
    fastest64 = min(results[name].get("ask64", results[name]["ask"]) for name in LIBRARIES)
    return {
        "ask, against the fastest library": round(fastest / ours["ask"], 2),
        "ask64, against the fastest library": round(fastest64 / ours["ask64"], 2),
        "ask, against xoscar local": round(results["xoscar local"]["ask"] / ours["ask"], 2),
        "ask64, against xoscar local": round(results["xoscar local"]["ask64"] / ours["ask64"], 2),
        "ask, against asyncio.Queue with a future": round(results["asyncio.Queue"]["ask"] / ours["ask"], 2),
        "tell, against asyncio.Queue put+get": round(results["asyncio.Queue"]["tell"] / ours["tell"], 2),
    }


def show(loop: str, results: dict[str, dict[str, float]]) -> None:
    """Print the table of one loop."""
    print(f"\n{loop}: microseconds a message (and how many times what samovar takes)")
    print(f"{'':16}" + "".join(f"{kind:>18}" for kind in MEASURES))
    for name, row in results.items():
        cells = [
            f"{row[kind]:8.2f} ({row[kind] / results['samovar'][kind]:5.2f}x)" if kind in row else "-"
            for kind in MEASURES
        ]
        print(f"{name:16}" + "".join(f"{cell:>18}" for cell in cells))
    for what, ratio in ratios(results).items():
        print(f"  {ratio:6.2f} times as fast: {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results there")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    facts: dict[str, Any] = {
        "command": " ".join(["python", "-m", "benchmarks.kernel", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "versions": {name: importlib.metadata.version(name) for name in (*LIBRARIES, "uvloop", "anyio")},
        "unit": f"microseconds a message, median of {options.rounds} bursts of {BURST}",
        "loops": {},
    }
    for loop, factory in (("uvloop", uvloop.new_event_loop), ("asyncio", asyncio.new_event_loop)):
        with asyncio.Runner(loop_factory=factory) as runner:
            results = runner.run(measure(options.rounds))
        show(loop, results)
        facts["loops"][loop] = {"results": results, "times_as_fast": ratios(results)}
    if options.json:
        options.json.write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()

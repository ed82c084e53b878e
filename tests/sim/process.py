"""One process: the real tree over the disk, from its start to whatever ends it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from samovar.actors.caching.lending import Take
from samovar.actors.durability import Persisted
from samovar.actors.residency import Clear, Put
from samovar.runtime.app import build_tree
from samovar.runtime.config.schema import Cache, Config, Lanes, Ram, Server, Ssd
from samovar.runtime.kernel import ActorSystem, ChildSpec, InjectedCrash, SupervisorSpec
from samovar.storage.directory import CheckpointDirectory

from .books import Counters
from .engine import SimEngine
from .front import Calls, FrontActor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from samovar.actors.stream import RequestStream
    from samovar.runtime.kernel import Actor, DeadLetter, Failure

    from .books import Key
    from .plan import Shape
    from .world import World

ROOT = "/cache"
REQUEST_S = 200.0


def config_of(shape: Shape) -> Config:
    """Return the configuration of a server of these sizes."""
    return Config(
        server=Server(request_timeout=REQUEST_S),
        lanes=Lanes(count=shape.lanes, batch=shape.batch, queue=shape.queue, max_tokens=12),
        cache=Cache(
            ram=Ram(max=shape.ram_bytes, hard_max=shape.hard_bytes, min_tokens=shape.min_tokens),
            ssd=Ssd(
                dir=ROOT if shape.ssd else "off",
                max=shape.ssd_bytes,
                free_floor=0.0,
                demote_idle=shape.demote_idle_s,
                verify=shape.verify,
                write_behind=shape.write_behind,
                writers=shape.writers,
                readers=shape.readers,
                restore_min_tokens=1,
            ),
        ),
    )


class _Idle:
    """A tap that does nothing but keep idle actors from answering on their asker's stack."""

    async def before(self, cell: object, message: object) -> None:
        return


class _Withdrawals(deque[Any]):
    def __init__(self, process: Process, directory: CheckpointDirectory) -> None:
        super().__init__(maxlen=10_000)
        self._process, self._directory = process, directory

    def append(self, item: Any, /) -> None:
        super().append(item)
        if self._process.present:
            self._process.world.books.withdrawn(item, self._directory)


class Process:
    """Implements ``kernel.Observer``. ``present`` is False once nothing that it does counts any more."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.present = world, number, True
        self.calls = Calls()
        self.counters = Counters()
        self.actors: dict[str, Actor[Any]] = {}
        self.failures: list[Failure] = []
        self.judged: list[Failure] = []
        self.owed: dict[Key, None] = {}
        self.letters: list[DeadLetter] = []
        self.given_up: list[str] = []
        self.stuck: list[tuple[str, str]] = []
        self.crashes: dict[str, int] = {}
        self.directory: CheckpointDirectory | None = None
        self.streams: list[RequestStream] = []
        self.stopping = self.stuck_allowed = self.confessed = False
        plan = world.plan
        self.engine = SimEngine(plan, world.turns, Random(number), self._heard)
        self._seed = plan.seed + number
        self._build(plan.shape)

    def _build(self, shape: Shape) -> None:
        tree = build_tree(config_of(shape), self.engine, self, self.world.disk)  # type: ignore[arg-type]
        front: ChildSpec[Any] = ChildSpec("http", lambda: FrontActor(self.calls), capacity=64)
        children = [front if child.id == "http" else child for child in tree.root.children]
        root = SupervisorSpec("root", children, tree.root.strategy, tree.root.limit, tree.root.backoff)
        for path, spec in _actors(root.children, ""):
            object.__setattr__(spec, "factory", self._watching(path, spec.factory))
        self.tree = replace(tree, http=front)
        self.system = ActorSystem(
            root, chance=Random(self._seed), observer=self, tap=None if shape.handing_off else _Idle()
        )
        self.tree.serving.system = self.system

    def directory_made(self, fs: Any, root: Any, identity: Any, limits: Any) -> CheckpointDirectory:
        """Stand in for the directory's class: what it makes is watched."""
        made = CheckpointDirectory(fs, root, identity, limits, self.world.wall)
        made._stock.withdrawals = _Withdrawals(self, made)
        recovering, again = made.recover, False

        def recovered() -> Any:
            nonlocal again
            report = recovering()
            if self.present:
                self.directory = made
                self.world.covered(f"scan{' again' * again}{' fails' * bool(report.failures)}")
                trouble = self.world.disk_trouble or (again and self.world.books.unreadable)
                if trouble:
                    self.owed.clear()
                if not report.failures:  # else the rest is yet to come
                    self.world.books.opened(made, "by a scan", certain=not trouble)
            again = True
            return report

        made.recover = recovered  # type: ignore[method-assign]
        return made

    def _heard(self, namespace: str, tokens: bytes) -> None:
        self.world.books.heard(namespace, tokens)

    def request_ended(self, record: object) -> None:
        """Take a line of the request log, which nothing here writes."""

    # -- every message of every actor

    def _watching(self, path: str, factory: Callable[[], Actor[Any]]) -> Callable[[], Actor[Any]]:
        def make() -> Actor[Any]:
            actor = self.actors[path] = factory()
            receive = actor.receive

            async def watched(message: Any) -> None:
                self._before(path, message)
                await receive(message)

            actor.receive = watched  # type: ignore[method-assign]
            return actor

        return make

    def _before(self, path: str, message: Any) -> None:
        world = self.world
        world.log.message(path, message)
        if self.present and path == "serving/residency":
            self._residency_hears(message)
        due = self.crashes.get(path)
        if due is not None:
            if due > 1:
                self.crashes[path] = due - 1
            else:
                del self.crashes[path]
                world.covered(f"crash on {type(message).__name__}")
                raise InjectedCrash(f"crashed on purpose on {type(message).__name__}")

    def _residency_hears(self, message: Any) -> None:
        books = self.world.books
        match message:
            case Put():
                self._put(message)
            case Persisted():
                books.persisted((message.namespace, message.tokens.to_bytes()), self.directory)
            case Clear():
                self.owed.clear()
                self.world.clears.append(self.world.log.count)
            case Take():
                ram = self.actors["serving/residency"]._ram  # type: ignore[attr-defined]
                if ram.entries.bytes > self.world.plan.shape.hard_bytes:
                    books.wrong(f"RAM holds {ram.entries.bytes} bytes, above its hard ceiling")
            case _:
                pass

    def _put(self, message: Put) -> None:
        spec = message.checkpoint.spec
        key = spec.namespace, spec.tokens.to_bytes()
        self.world.books.put[key] = self.world.log.count
        if message.session is not None or len(spec.tokens) >= self.world.plan.shape.min_tokens:
            self.owed[key] = None

    # -- the observer

    def failed(self, failure: Failure, restart_in_s: float | None) -> None:
        self.failures.append(failure)
        if failure.path in {"serving", "serving/residency"}:
            self.owed.clear()
        if not self.world.disk.dead:  # of a machine without power nothing can be said
            self.judged.append(failure)
        self.world.log.say(f"failed {failure.path} {type(failure.error).__name__}")

    def restarted(self, path: str, incarnation: int) -> None:
        self.world.log.say(f"restarted {path}")

    def gave_up(self, path: str, failure: Failure) -> None:
        self.given_up.append(path)
        self.world.log.say(f"gave up {path}")

    def unstoppable(self, path: str, what: str) -> None:
        self.stuck.append((path, what))

    def dead_letter(self, letter: DeadLetter) -> None:
        self.letters.append(letter)

    # -- looking

    def running(self, path: str) -> Any:
        """Return the actor at ``path``; None while it does not run."""
        node = self.system._nodes.get(path)
        return self.actors.get(path) if node is not None and node.state == "running" else None

    @property
    def lost(self) -> int:
        """How many entries RAM let go before they were durable."""
        residency = self.actors.get("serving/residency")
        return 0 if residency is None else residency._counts.lost  # type: ignore[attr-defined]

    def paths(self) -> list[str]:
        """Return all actors and supervisors but the root."""
        return [each.path for each in self.system.figures()]

    async def start(self) -> None:
        """Bring the tree up. Raises StartFailed."""
        await self.system.start()
        self.tree.serving.started()

    async def end(self) -> None:
        """Take the tree down, and let go of its threads."""
        self.stopping = True
        self.calls.end()
        stopping = asyncio.ensure_future(self.system.stop())
        await asyncio.wait({stopping}, timeout=600.0)
        if not stopping.done():
            self.world.books.wrong("the tree does not stop")
        self.tree.close()


def _actors(
    children: Iterable[ChildSpec[Any] | SupervisorSpec], path: str
) -> Iterable[tuple[str, ChildSpec[Any]]]:
    for child in children:
        if isinstance(child, SupervisorSpec):
            yield from _actors(child.children, f"{path}{child.id}/")
        else:
            yield f"{path}{child.id}", child

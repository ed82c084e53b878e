"""The tree as data: which actors there are, in which order, under which rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from .policy import Backoff, Restart, RestartLimit, Strategy
from .ref import ActorRef

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .actor import Actor
    from .mailbox import Overflow

M = TypeVar("M")

OnRestart: TypeAlias = Literal["keep", "drop"]


@dataclass(frozen=True)
class ChildSpec(Generic[M]):
    """One actor of the tree. ``ref`` is its address, valid to hand out before anything runs.

    Args:
        id: name within the parent; the path is the parent's path + "/" + id.
        factory: makes a fresh actor for every incarnation; it must not keep state between calls.
        restart: ``permanent`` always comes back, ``transient`` only after a crash, ``temporary`` never.
        start_s: seconds that ``started`` may take.
        shutdown_s: seconds for drain + ``stopped``; then the actor is killed.
        capacity: how many messages may wait; there is no unbounded mailbox.
        overflow: what a full mailbox does: ``reject`` the new one, let askers ``wait`` within their
            deadline, or ``drop_oldest``.
        on_restart: whether messages that wait at a crash are kept for the next incarnation or dropped
            (asks fail with ActorCrashed, tells go to dead letters). The failing message is never kept.
        max_tasks: how many spawned tasks may run at a time.
    """

    id: str
    factory: Callable[[], Actor[M]]
    capacity: int
    restart: Restart = "permanent"
    start_s: float = 30.0
    shutdown_s: float = 5.0
    overflow: Overflow = "reject"
    on_restart: OnRestart = "keep"
    max_tasks: int = 256
    ref: ActorRef[M] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        _check_id(self.id)
        if self.capacity < 1 or self.max_tasks < 1 or self.start_s <= 0 or self.shutdown_s < 0:
            raise ValueError(f"child {self.id}: limits must be positive")
        object.__setattr__(self, "ref", ActorRef[M](self.id))


@dataclass(frozen=True)
class SupervisorSpec:
    """A supervisor and its children, started in order and stopped in reverse.

    When ``limit`` is passed the supervisor stops its children and fails itself; its own supervisor
    decides next. The root's failure ends the system.
    """

    id: str
    children: Sequence[ChildSpec[Any] | SupervisorSpec]
    strategy: Strategy = "one_for_one"
    limit: RestartLimit = field(default_factory=RestartLimit)
    backoff: Backoff = field(default_factory=Backoff)
    restart: Restart = "permanent"

    def __post_init__(self) -> None:
        _check_id(self.id)
        ids = [child.id for child in self.children]
        if len(set(ids)) != len(ids):
            raise ValueError(f"supervisor {self.id}: children need distinct ids, not {ids}")


def _check_id(child_id: str) -> None:
    if not child_id or "/" in child_id:
        raise ValueError(f"an actor id is a non-empty name without '/', not {child_id!r}")

"""A small typed actor kernel: refs, mailboxes, asks with one outcome, supervision, watches, threads.

It knows no word of what its actors do and imports nothing else of Samovar. Start reading at ``actor.py``
(what an actor is) and ``context.py`` (what it may do), then ``spec.py`` (the tree as data), then
``cell.py`` (what stands behind a ref).
"""

from .actor import Actor
from .context import Context, Deferred, Timer
from .errors import (
    ActorCrashed,
    ActorGone,
    AskCycle,
    AskError,
    AskTimeout,
    ForeignCancellation,
    InjectedCrash,
    KernelError,
    Overloaded,
    Rejected,
    RestartStorm,
    StartFailed,
    Unanswered,
    UnstoppableChild,
)
from .figures import ActorFigures, DeadReason, State
from .message import Ask, Failure, Terminated
from .observer import DeadLetter, Observer, Silent
from .policy import Backoff, RestartLimit
from .ref import ActorRef
from .spec import ChildSpec, SupervisorSpec
from .system import ActorSystem, Tap
from .threads import BlockingPool, PinnedThread, ThreadPort

__all__ = [
    "Actor",
    "ActorCrashed",
    "ActorFigures",
    "ActorGone",
    "ActorRef",
    "ActorSystem",
    "Ask",
    "AskCycle",
    "AskError",
    "AskTimeout",
    "Backoff",
    "BlockingPool",
    "ChildSpec",
    "Context",
    "DeadLetter",
    "DeadReason",
    "Deferred",
    "Failure",
    "ForeignCancellation",
    "InjectedCrash",
    "KernelError",
    "Observer",
    "Overloaded",
    "PinnedThread",
    "Rejected",
    "RestartLimit",
    "RestartStorm",
    "Silent",
    "StartFailed",
    "State",
    "SupervisorSpec",
    "Tap",
    "Terminated",
    "ThreadPort",
    "Timer",
    "Unanswered",
    "UnstoppableChild",
]

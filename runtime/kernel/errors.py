"""What can go wrong between actors.

KernelError
├── AskError                 an ask that did not get its reply
│   ├── Rejected             the actor refused it and said why (``__cause__``)
│   ├── ActorCrashed         the actor failed while it held the ask, or dropped it in its restart
│   ├── ActorGone            the actor has stopped for good, or stopped while it held the ask
│   ├── AskTimeout           no reply before the deadline
│   ├── Overloaded           the mailbox (or a pool) was full
│   └── AskCycle             the ask would have waited for its own asker
├── StartFailed              an actor did not come up
├── RestartStorm             a supervisor saw more restarts than its limit and gave up
├── ForeignCancellation      a handler was cancelled from outside its own scopes
├── Unanswered               a handler returned without answering or deferring an ask
├── InjectedCrash            a crash made on purpose, by a test or by fault injection
└── UnstoppableChild         a child cannot start: its last incarnation is stuck past its budgets

Every error has a stable ``code`` and says with ``retryable`` whether the same call may work later.
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of all kernel errors."""

    code = "kernel_error"
    retryable = False


class AskError(KernelError):
    """An ask ended without a reply. ``path`` is the actor asked, ``operation`` the message's type name."""

    code = "ask_error"

    def __init__(self, path: str, operation: str, detail: str) -> None:
        super().__init__(f"{operation} to {path}: {detail}")
        self.path = path
        self.operation = operation


class Rejected(AskError):
    """The actor refused the ask. The reason is the exception's cause."""

    code = "rejected"


class ActorCrashed(AskError):
    """The actor failed while it held the ask, or its restart dropped the queue."""

    code = "actor_crashed"
    retryable = True


class ActorGone(AskError):
    """The actor has stopped."""

    code = "actor_gone"


class AskTimeout(AskError):
    """The deadline passed first. The actor may still do the work."""

    code = "ask_timeout"
    retryable = True


class Overloaded(AskError):
    """The queue was full; nothing was enqueued."""

    code = "overloaded"
    retryable = True


class AskCycle(AskError):
    """The asked actor is waiting, directly or through others, for the asker."""

    code = "ask_cycle"


class StartFailed(KernelError):
    """An actor's ``started`` hook failed or outran its budget. The cause is chained."""

    code = "start_failed"

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path} did not start: {detail}")
        self.path = path


class RestartStorm(KernelError):
    """A supervisor gave up: its children failed more often than its limit allows."""

    code = "restart_storm"


class ForeignCancellation(KernelError):
    """A CancelledError that belongs to none of the actor's own scopes; treated as a crash."""

    code = "foreign_cancellation"


class Unanswered(KernelError):
    """A handler returned without replying to, rejecting or deferring the ask it was given."""

    code = "unanswered"


class InjectedCrash(KernelError):
    """A crash made on purpose."""

    code = "injected_crash"


class UnstoppableChild(KernelError):
    """A child cannot start: its last incarnation outlived its budgets, stuck most likely in a thread."""

    code = "unstoppable"


def forget_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error and of all that led to it.

    Their frames hold the incarnation that failed, with all its state, as long as the failure is remembered.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            waiting += [each.__cause__, each.__context__]

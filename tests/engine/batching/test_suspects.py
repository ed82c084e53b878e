"""What fails costs who it is about: the rows at work, or a publication alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.batching import publishing
from samovar.runtime.engine.batching.backend import BackendOptions, MlxBackend
from samovar.runtime.engine.batching.groups import DecodeGroups
from samovar.runtime.engine.port import AtWork, Delta, Finished, Published

from tests.engine.batching.test_backend import ask, drain, finished, of, opened, run, tokens_of
from tests.kit.models import TinyModel, build, tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.core as mx
    from samovar.runtime.engine.port import RowEvent


class _Watching:
    """A real model that calls ``raises`` with the shape of every input, before it computes."""

    def __init__(self, raises: Callable[[tuple[int, ...]], None]) -> None:
        self._model = build("llama")
        self.raises = raises

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, **kwargs: Any) -> mx.array:
        self.raises(tuple(inputs.shape))
        return self._model(inputs, **kwargs)


def watched(raises: Callable[[tuple[int, ...]], None], **options: Any) -> tuple[MlxBackend, _Watching]:
    model = _Watching(raises)
    return opened(TinyModel(model), **options), model


def never(shape: tuple[int, ...]) -> None:
    """No failure yet."""


def on(failing: Callable[[tuple[int, ...]], bool]) -> Callable[[tuple[int, ...]], None]:
    def raises(shape: tuple[int, ...]) -> None:
        if failing(shape):
            raise RuntimeError("device lost")

    return raises


def decoding(shape: tuple[int, ...]) -> bool:
    return shape[1] == 1


def prefilling(shape: tuple[int, ...]) -> bool:
    return shape[1] > 1


def step_until(backend: MlxBackend, name: str, tokens: int) -> None:
    seen = 0
    while seen < tokens:
        seen += len(tokens_of(backend.step(), name))


def suspects(backend: MlxBackend) -> AtWork:
    with pytest.raises(RuntimeError, match="device lost"):
        drain(backend)
    return backend.at_work


# --- who is at work -------------------------------------------------------------------------------


def test_a_failing_pass_is_about_the_rows_that_prefill_in_it() -> None:
    backend, model = watched(never, prefill_chunk=32)
    backend.insert(ask("runs", 4, 100))
    step_until(backend, "runs", 3)
    model.raises = on(prefilling)
    backend.insert(ask("a", 9, 4))
    backend.insert(ask("b", 12, 4))
    backend.insert(ask("later", 400, 4))
    assert suspects(backend) == AtWork("prefill", frozenset({"a", "b"}))


def test_a_failing_step_is_about_the_rows_that_decode() -> None:
    backend, model = watched(never, batch=2)
    backend.insert(ask("a", 4, 100))
    backend.insert(ask("b", 6, 100))
    backend.insert(ask("waits", 6, 100))
    step_until(backend, "b", 2)
    model.raises = on(decoding)
    assert suspects(backend) == AtWork("decode", frozenset({"a", "b"}))


def test_a_step_that_waits_for_a_pass_is_about_its_rows_too() -> None:
    model = _Watching(never)
    backend = MlxBackend(TinyModel(model), BackendOptions(prefill_chunk=16), launch_computes=False)
    backend.open()
    backend.insert(ask("runs", 4, 100))
    step_until(backend, "runs", 3)
    backend.insert(ask("long", 400, 4))
    backend.step()  # the pass is left running behind the step
    model.raises = on(decoding)
    assert suspects(backend) == AtWork("decode", frozenset({"runs", "long"}))


def test_a_row_that_was_cancelled_is_still_a_suspect_of_its_last_step() -> None:
    backend, model = watched(never)
    backend.insert(ask("a", 4, 100))
    backend.insert(ask("gone", 6, 100))
    step_until(backend, "gone", 2)
    backend.cancel("gone")
    model.raises = on(decoding)
    assert suspects(backend) == AtWork("decode", frozenset({"a", "gone"}))


def test_a_failing_join_is_about_the_rows_that_join(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened(tiny("llama"))
    backend.insert(ask("runs", 4, 100))
    step_until(backend, "runs", 3)
    backend.insert(ask("joins", 9, 4))

    def failing(self: DecodeGroups, rows: Any) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(DecodeGroups, "join", failing)
    assert suspects(backend) == AtWork("join", frozenset({"joins"}))


# --- state that cannot be kept --------------------------------------------------------------------


def keep_nothing(monkeypatch: pytest.MonkeyPatch, phase: str, error: Exception) -> None:
    def failing(*args: Any) -> Any:
        raise error

    if phase == "extract":
        monkeypatch.setattr(DecodeGroups, "extract", failing)
    else:
        monkeypatch.setattr(publishing, "snapshot", failing)


@pytest.mark.parametrize("phase", ["extract", "publish"])
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[malloc] unable to allocate")])
def test_a_state_that_cannot_be_kept_costs_the_answer_nothing(
    monkeypatch: pytest.MonkeyPatch, phase: str, error: Exception
) -> None:
    """B011: copying the finished row's state out took the answer and the server with it."""
    whole = run(opened(tiny("llama")), ask("a", 40, 8), ask("b", 40, 20))
    backend = opened(tiny("llama"))
    with monkeypatch.context() as patched:
        keep_nothing(patched, phase, error)
        events = run(backend, ask("a", 40, 8, publish=True), ask("b", 40, 20, publish=True))
    for name in "ab":
        assert tokens_of(events, name) == tokens_of(whole, name)
        assert isinstance(finished(events, name), Finished)
    kept = [event for event in events if isinstance(event, Published)]
    assert len(kept) == (2 if phase == "extract" else 0)
    assert backend.figures().failed_publications == 4 - len(kept)
    again = run(backend, ask("c", 40, 8, publish=True))
    assert sum(isinstance(event, Published) for event in again) == 2
    assert backend.figures().failed_publications == 4 - len(kept)


def test_a_boundary_that_cannot_be_kept_lets_the_row_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened(tiny("mamba2"))
    events: list[RowEvent] = []
    with monkeypatch.context() as patched:
        keep_nothing(patched, "publish", MemoryError())
        backend.insert(ask("a", 80, 6, publish=True, boundary=40))
        while not any(isinstance(event, Delta) for event in events):
            events += backend.step()
    events += drain(backend)
    assert backend.figures().failed_publications == 2
    assert [len(event.checkpoint.spec.tokens) for event in of(events, "a") if isinstance(event, Published)]
    assert tokens_of(events, "a") == tokens_of(run(opened(tiny("mamba2")), ask("a", 80, 6)), "a")

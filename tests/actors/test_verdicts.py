"""Who is to blame for a crash, as a table; what is remembered of the convicted, and for how long."""

from __future__ import annotations

from samovar.actors.requests import GenerationRequest
from samovar.actors.scheduling.ledger import Asked, Running
from samovar.actors.scheduling.verdicts import (
    CONVICTED_S,
    CONVICTS,
    Convicts,
    Mark,
    fingerprint,
    judge,
    told,
)
from samovar.actors.stream import RequestStream
from samovar.runtime.engine.errors import LaneStepFailed
from samovar.runtime.engine.port import Delta, Finished, Prefilled, RowRequest, Sampling
from samovar.runtime.kernel import InjectedCrash
from samovar.storage.tokens import TokenIds

from tests.kit import virtual
from tests.kit.prompts import chat

TOKENS = TokenIds.of([1, 2, 3])


def running(name: str) -> Running:
    row = RowRequest(name, TOKENS, 5)
    asked = Asked(GenerationRequest(name, chat()), row, TOKENS, 0, 0.0, 0.0, b"")
    return Running(asked, RequestStream(name, lambda _: None))


def failed(*names: str, phase: str = "decode") -> LaneStepFailed:
    return LaneStepFailed(phase, frozenset(names), RuntimeError("device lost"))


@virtual
async def test_who_is_not_named_is_not_suspected() -> None:
    a, b = running("a"), running("b")
    for error in (None, InjectedCrash("by an operator"), failed(), failed("somebody else")):
        verdict = judge([a, b], error)
        assert (verdict.convicted, verdict.suspects) == (None, ())
    b.stream.push(Finished("b", "stop", "", 3, 0, 0.0, 0.0))
    assert [suspect for suspect, _ in judge([a, b], failed("a", "b")).suspects] == [a]


@virtual
async def test_the_second_crash_of_an_only_suspect_convicts_it_wherever_it_is() -> None:
    a, b = running("a"), running("b")
    assert judge([a, b], failed("a")).convicted is None
    a.stream.push(Delta("a", "x", (7, 8)))  # it got further meanwhile
    assert judge([a, b], failed("a")).convicted is a


@virtual
async def test_of_several_the_one_on_trial_is_to_blame() -> None:
    a, b, c = running("a"), running("b"), running("c")
    verdict = judge([a, b], failed("a", "b"))
    assert verdict.convicted is None
    assert [suspect for suspect, _ in verdict.suspects] == [a, b]
    for suspect, mark in verdict.suspects:
        suspect.suspect(mark, lambda: None)
    assert judge([a, c], failed("a", "c")).convicted is a
    b.stream.push(Delta("b", "x", (7,)))
    assert b.mark is None
    verdict = judge([b, c], failed("b", "c"))
    assert verdict.convicted is None  # it had been cleared: everything begins anew
    assert len(verdict.suspects) == 2


@virtual
async def test_a_suspect_is_cleared_when_it_gets_further_than_where_it_was() -> None:
    cleared: list[str] = []
    a = running("a")
    a.stream.prefill_left = 3
    a.suspect(Mark(0, prefilling=True), lambda: cleared.append("prefill"))
    a.stream.push(Prefilled("a", 2, 3))
    assert not cleared
    a.stream.push(Prefilled("a", 3, 3))
    assert cleared == ["prefill"]
    a.suspect(Mark(1, prefilling=False), lambda: cleared.append("decode"))
    a.stream.push(Delta("a", "x", (7,)))
    assert cleared == ["prefill"]
    a.stream.push(Delta("a", "x", (8,)))
    assert cleared == ["prefill", "decode"]


def test_causes_are_told_in_one_line_and_without_names() -> None:
    error = LaneStepFailed(
        "prefill", frozenset(), ValueError(r"bad file /a/b.metal or C:\x\y" + "\nand more")
    )
    assert told(error) == "prefill failed: bad file … or …"
    assert len(told(RuntimeError("x" * 1000))) < 200
    assert told(LaneStepFailed("decode", frozenset(), RuntimeError())) == "decode failed"
    assert told(RuntimeError()) == told(None) == "no reason is known"


def test_convicts_are_forgotten_in_time_and_never_too_many() -> None:
    convicts = Convicts()
    convicts.add(b"first", "it did", 0.0)
    assert convicts.cause(b"first", CONVICTED_S - 1) == "it did"
    assert convicts.cause(b"other", 0.0) is None
    assert convicts.cause(b"first", CONVICTED_S) is None
    for n in range(CONVICTS + 10):
        convicts.add(str(n).encode(), "it did", 0.0)
    assert len(convicts) == CONVICTS
    assert convicts.cause(b"9", 1.0) is None
    assert convicts.cause(b"10", 1.0) == "it did"


def test_the_same_request_has_the_same_fingerprint_whoever_sends_it() -> None:
    row = RowRequest("a", TOKENS, 5, Sampling(temperature=0.5))
    same = RowRequest("b", TOKENS, 9, Sampling(temperature=0.5))
    other = RowRequest("a", TOKENS, 5, Sampling(temperature=0.6))
    assert fingerprint(TOKENS, row) == fingerprint(TOKENS, same)
    assert fingerprint(TOKENS, row) != fingerprint(TOKENS, other)
    assert fingerprint(TOKENS, row) != fingerprint(TokenIds.of([1, 2]), row)

"""What waits in a stream for a reader that is far behind."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samovar.actors.stream import RequestStream
from samovar.actors.waiting import PACKED_TOGETHER, WaitingEvents
from samovar.runtime.engine.port import Delta, Failed, Finished, Prefilled, TokenLogprob

from tests.kit import virtual

if TYPE_CHECKING:
    from samovar.actors.stream import StreamEvent

LONG_REPLY = 20_000
BYTES_A_TOKEN = 40
FINISHED = Finished("r", "stop", "", 3, 5, 0.0, 0.0)

TOKENS = st.integers(0, 2**31)
SPELLS = st.sampled_from([0, 1, PACKED_TOGETHER - 1, PACKED_TOGETHER, 2 * PACKED_TOGETHER + 3])
LOGPROBS = st.builds(
    TokenLogprob,
    TOKENS,
    st.text(max_size=3),
    st.floats(max_value=0.0),
    st.lists(st.tuples(TOKENS, st.text(max_size=3), st.floats(max_value=0.0)), max_size=2).map(tuple),
)
DELTAS = st.builds(
    Delta,
    st.just("r"),
    st.text(max_size=4),
    st.lists(TOKENS, min_size=1, max_size=3).map(tuple),
    st.lists(LOGPROBS, max_size=2).map(tuple),
)


def drained(waiting: WaitingEvents) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while waiting:
        taken = waiting.take()
        assert 0 < len(taken) <= PACKED_TOGETHER
        events += taken
    return events


@settings(max_examples=40)
@given(
    st.lists(
        DELTAS | st.builds(Prefilled, st.just("r"), st.integers(1, 9), st.just(9)), min_size=1, max_size=5
    ),
    st.lists(SPELLS, min_size=1, max_size=4),
)
def test_what_is_taken_is_what_was_pushed(kinds: list[StreamEvent], spells: list[int]) -> None:
    """Read in between or not, wherever a pack ends."""
    waiting = WaitingEvents("r")
    sent: list[StreamEvent] = []
    got: list[StreamEvent] = []
    for spell in spells:
        for place in range(spell):
            event = kinds[place % len(kinds)]
            sent.append(event)
            waiting.push(event)
        got += waiting.take() if waiting else []
    assert got + drained(waiting) == sent


@pytest.mark.parametrize("logprobs", [(), (TokenLogprob(7, "it", -0.5, ((7, "it", -0.5), (8, "is", -1.5))),)])
def test_an_unread_reply_takes_little_memory(logprobs: tuple[TokenLogprob, ...]) -> None:
    def taken_by(events: WaitingEvents | list[StreamEvent]) -> int:
        tracemalloc.start()
        try:
            for place in range(LONG_REPLY):
                made = tuple(
                    TokenLogprob(each.token + place, f"{place}", each.logprob - place) for each in logprobs
                )
                event = Delta("r", f" {place}", (1000 + place,), made)
                events.append(event) if isinstance(events, list) else events.push(event)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    packed = taken_by(WaitingEvents("r"))
    assert packed < taken_by([]) / 4
    assert packed < LONG_REPLY * BYTES_A_TOKEN * (1 + len(logprobs))


@virtual
async def test_a_late_reader_gets_it_all_and_the_end_itself() -> None:
    stream = RequestStream("r", lambda _: None)
    deltas = [Delta("r", str(place), (place,)) for place in range(2 * PACKED_TOGETHER + 7)]
    for event in (Prefilled("r", 2, 2), *deltas, FINISHED, Failed("r", "late", "ignored")):
        stream.push(event)
    assert stream.emitted_tokens == len(deltas)
    events: list[StreamEvent] = []
    while not events or events[-1] is not stream.terminal:
        events += await stream.take()
    assert events == [Prefilled("r", 2, 2), *deltas, FINISHED]
    with pytest.raises(RuntimeError, match="has ended"):
        await stream.take()


@virtual
async def test_a_reply_of_exactly_one_pack_ends_once() -> None:
    stream = RequestStream("r", lambda _: None)
    for place in range(PACKED_TOGETHER - 1):
        stream.push(Delta("r", "x", (place,)))
    stream.push(FINISHED)
    assert (await stream.take())[-1] is FINISHED
    with pytest.raises(RuntimeError, match="has ended"):
        await stream.take()

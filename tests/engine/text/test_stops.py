from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from samovar.runtime.engine.text.stops import StopMatcher

ALPHABET = "ab€"
texts = st.text(ALPHABET, max_size=40)
stop_lists = st.lists(st.text(ALPHABET, max_size=5), max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """Read character by character; the first prefix that ends in a stop string decides."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def chunks(text: str, cuts: list[int]) -> list[str]:
    marks = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(marks)]


@given(texts, stop_lists, st.lists(st.integers(0, 100), max_size=12))
def test_any_chunking_gives_what_the_whole_text_gives(text: str, stops: list[str], cuts: list[int]) -> None:
    wanted, matched = reference(text, stops)
    matcher = StopMatcher(stops)
    shown = ""
    for chunk in chunks(text, cuts):
        shown += matcher.add(chunk)
        assert wanted.startswith(shown), "a character behind the cut leaked"
    assert shown + matcher.flush() == wanted
    assert matcher.matched == matched
    assert (matcher.stopped_by in stops) == matched


@given(texts, stop_lists)
def test_no_more_than_needed_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    matcher.add(text)
    if matcher.matched:
        return
    held = matcher.flush()
    longer = [text[start:] for start in range(len(text) - len(held))]
    assert not any(stop.startswith(suffix) for suffix in longer for stop in stops if suffix)
    assert not held or any(stop.startswith(held) for stop in stops)


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(["STOP"])
    assert [matcher.add(each) for each in ("one S", "TO", "P two", " three")] == ["one ", "", "", ""]
    assert matcher.matched
    assert matcher.flush() == ""


def test_a_beginning_that_comes_to_nothing_is_let_go() -> None:
    matcher = StopMatcher(["</end>"])
    assert [matcher.add(each) for each in ("x</", "en", "ough")] == ["x", "", "</enough"]


def test_the_stop_that_is_complete_first_wins() -> None:
    matcher = StopMatcher(["abc", "b"])
    assert matcher.add("zabc") == "za"


def test_an_empty_stop_string_stops_nothing() -> None:
    matcher = StopMatcher(["", ""])
    assert matcher.add("text") == "text"
    assert not matcher.matched

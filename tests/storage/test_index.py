"""The prefix index against a list that is searched from end to end."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from samovar.storage.index import Match, PrefixIndex
from samovar.storage.tokens import TokenIds


@dataclass(frozen=True)
class Entry:
    tokens: TokenIds
    namespace: str = ""
    trimmable: bool = True
    reusable_from: int = 0
    label: str = ""


def entry(*ids: int, namespace: str = "", trimmable: bool = True, reusable_from: int = 0) -> Entry:
    return Entry(TokenIds.of(ids), namespace, trimmable, reusable_from)


def look(index: PrefixIndex[Entry], *ids: int, namespace: str = "", limit: int = 1000) -> Any:
    match = index.longest(TokenIds.of(ids), namespace, limit)
    return None if match is None else (match.length, match.entry)


def test_removing_what_is_not_there_is_an_error_and_changes_nothing() -> None:
    kept = entry(1, 2, 3)
    index = PrefixIndex([kept])
    for stranger in (entry(1, 2), entry(1, 2, 3, 4), entry(9), entry(1, 2, 3, namespace="lora"), entry()):
        with pytest.raises(KeyError):
            index.remove(stranger)
    with pytest.raises(KeyError):
        index.remove(entry(1, 2, 3, trimmable=False))
    index.check_integrity()
    assert list(index) == [kept]


def test_an_empty_index_answers_nothing() -> None:
    index = PrefixIndex[Entry]()
    assert look(index, 1, 2) is None
    assert index.get(TokenIds.of([1]), "") is None
    assert index.common_prefix(TokenIds.of([1]), "") == 0
    assert index.ancestors(TokenIds.of([1]), "") == index.descendants(TokenIds.of([1]), "") == []


def test_b103_a_one_token_prefix_is_found() -> None:
    one = entry(7)
    index = PrefixIndex([one])
    assert look(index, 7, 8, 9) == (1, one)
    assert look(index, 7) == (1, one)
    assert look(index, 7, limit=0) is None


def test_an_untrimmable_entry_serves_its_own_length_only() -> None:
    exact = entry(1, 2, 3, 4, trimmable=False)
    index = PrefixIndex([exact])
    assert look(index, 1, 2, 3, 9) is None
    assert look(index, 1, 2, 3, 4, 5) == (4, exact)
    assert look(index, 1, 2, 3, 4, limit=3) is None


def test_a_longer_untrimmable_entry_does_not_hide_its_ancestor() -> None:
    boundary, ring = entry(1, 2, trimmable=False), entry(1, 2, 3, 4, trimmable=False)
    index = PrefixIndex([boundary, ring])
    assert look(index, 1, 2, 3, 9) == (2, boundary)
    assert look(index, 1, 2, 3, 4, limit=3) == (2, boundary)


def test_below_reusable_from_there_is_no_match_but_an_older_donor_serves() -> None:
    quantised, donor = entry(1, 2, 3, 4, 5, 6, reusable_from=4), entry(1, 2)
    index = PrefixIndex([quantised, donor])
    assert look(index, 1, 2, 3, 4, 9) == (4, quantised)
    assert look(index, 1, 2, 3, 9) == (2, donor)
    index.remove(donor)
    assert look(index, 1, 2, 3, 9) is None


def test_a_sibling_serves_the_common_part() -> None:
    first, other = entry(1, 2, 3, 4), entry(1, 2, 3, 7, 8, trimmable=False)
    index = PrefixIndex([first, other])
    assert look(index, 1, 2, 3, 7, 9) == (3, first)


def test_of_several_donors_the_exact_one_then_the_shortest_is_lent() -> None:
    exact, short, long = entry(1, 2, trimmable=False), entry(1, 2, 3), entry(1, 2, 4, 5, 6)
    index = PrefixIndex([long, short, exact])
    assert look(index, 1, 2, 9) == (2, exact)
    index.remove(exact)
    assert look(index, 1, 2, 9) == (2, short)


def test_namespaces_never_meet() -> None:
    base, lora = entry(1, 2), entry(1, 2, 3, namespace="lora")
    index = PrefixIndex([base, lora])
    assert look(index, 1, 2, 3) == (2, base)
    assert look(index, 1, 2, 3, namespace="lora") == (3, lora)
    assert look(index, 1, 2, 3, namespace="other") is None


def test_a_match_tells_where_the_prompt_leaves_everything_stored() -> None:
    index = PrefixIndex([entry(1, 2, 3, 4, 5, trimmable=False), entry(1, 2)])
    assert index.longest(TokenIds.of([1, 2, 3, 4, 9]), "", 4) == Match(entry(1, 2), 2, diverged_at=4)
    assert index.common_prefix(TokenIds.of([1, 2, 3, 4, 9]), "") == 4


def test_a_replaced_entry_keeps_no_memory_alive() -> None:
    old, new, longer = entry(1, 2, 3), entry(1, 2, 3, trimmable=False), entry(1, 2, 3, 4)
    index = PrefixIndex([old, longer])
    assert index.add(new) is old
    index.check_integrity()
    assert index.add(new) is new
    index.check_integrity()
    assert len(index) == 2
    assert _holders_of_tokens(old) == 1


def test_removed_entries_keep_no_memory_alive() -> None:
    shared, left, right = entry(1, 2, 3), entry(1, 2, 3, 4, 5), entry(1, 2, 3, 4, 6)
    index = PrefixIndex([shared, left, right])
    index.remove(left)
    index.remove(shared)
    assert _holders_of_tokens(left) == _holders_of_tokens(shared) == 1
    assert list(index) == [right]


def _holders_of_tokens(of: Entry) -> int:
    return sys.getrefcount(of.tokens) - 1  # the argument counts too


def test_a_chain_deeper_than_the_recursion_limit_works(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    limit = len(inspect.stack(0)) + 100  # room for calls, not for one at each level
    sys.setrecursionlimit(limit)
    ids = list(range(3 * limit))
    chain = [entry(*ids[:end], trimmable=False) for end in range(1, len(ids), 2)]
    index = PrefixIndex(chain)
    index.check_integrity()
    assert look(index, *ids, limit=10_000)[0] == len(chain[-1].tokens)
    assert len(index.ancestors(TokenIds.of(ids), "")) == len(chain)
    assert len(index.descendants(TokenIds.of(ids[:2]), "")) == len(chain) - 1
    for gone in chain:
        index.remove(gone)
    assert len(index) == 0


class CountedTokens(TokenIds):
    """Counts how often they are compared."""

    comparisons = 0

    def common_prefix(self, other: TokenIds, start: int = 0) -> int:
        CountedTokens.comparisons += 1
        return super().common_prefix(other, start)


@pytest.mark.parametrize("ascending", [True, False])
def test_a_lookup_compares_once_along_a_chain_of_turns(
    monkeypatch: pytest.MonkeyPatch, *, ascending: bool
) -> None:
    monkeypatch.setattr(CountedTokens, "comparisons", 0)
    ids = range(200)
    chain = [entry(*ids[:end], trimmable=False) for end in range(2, 200, 2)]
    index = PrefixIndex(chain if ascending else reversed(chain))
    asked = CountedTokens.of(ids)
    assert look(index, *ids) == (198, chain[-1])
    assert index.common_prefix(asked, "") == 198
    assert CountedTokens.comparisons == 1
    index.remove(chain[-1])
    assert index.common_prefix(asked, "") == 196
    assert CountedTokens.comparisons == 2
    index.check_integrity()


_IDS = st.lists(st.integers(0, 2), max_size=7)
_NAMESPACES = st.sampled_from(["", "lora"])


class IndexMachine(RuleBasedStateMachine):
    """The index and a list see the same changes and are asked the same questions."""

    added = Bundle("added")

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex[Entry]()
        self.entries: list[Entry] = []

    @rule(
        target=added,
        ids=_IDS,
        namespace=_NAMESPACES,
        trimmable=st.booleans(),
        lowest=st.integers(0, 7),
        label=st.text(max_size=1),
    )
    def add(self, ids: list[int], namespace: str, trimmable: bool, lowest: int, label: str) -> Entry:
        reusable_from = min(lowest, len(ids)) if trimmable else len(ids)
        new = Entry(TokenIds.of(ids), namespace, trimmable, reusable_from, label)
        old = [e for e in self.entries if (e.namespace, e.tokens) == (namespace, new.tokens)]
        assert self.index.add(new) == (old[0] if old else None)
        self.entries = [e for e in self.entries if e not in old] + [new]
        return new

    @rule(gone=consumes(added))
    def remove(self, gone: Entry) -> None:
        if gone in self.entries:
            self.index.remove(gone)
            self.entries.remove(gone)
        else:
            with pytest.raises(KeyError):
                self.index.remove(gone)

    @rule(ids=_IDS, namespace=_NAMESPACES, limit=st.integers(0, 8))
    def longest(self, ids: list[int], namespace: str, limit: int) -> None:
        here = [e for e in self.entries if e.namespace == namespace]
        tokens = TokenIds.of(ids)
        match = self.index.longest(tokens, namespace, limit)
        best = max((_serves(e, ids, limit) for e in here), default=0)
        common = max((tokens.common_prefix(e.tokens) for e in here), default=0)
        assert (match.length if match else 0) == best
        assert self.index.common_prefix(tokens, namespace) == common
        if match is not None:
            assert match.entry in here
            assert match.diverged_at == common
            assert match.entry.tokens[: match.length] == tokens[: match.length]
            assert match.length == len(match.entry.tokens) or (
                match.entry.trimmable and match.entry.reusable_from <= match.length
            )

    @rule(ids=_IDS, namespace=_NAMESPACES)
    def relatives(self, ids: list[int], namespace: str) -> None:
        tokens = TokenIds.of(ids)
        here = [e for e in self.entries if e.namespace == namespace]
        exact = [e for e in here if e.tokens == tokens]
        ancestors = [e for e in here if len(e.tokens) < len(ids) and tokens.starts_with(e.tokens)]
        descendants = [e for e in here if len(e.tokens) > len(ids) and e.tokens.starts_with(tokens)]
        by_length = sorted(ancestors, key=lambda e: len(e.tokens))
        assert self.index.get(tokens, namespace) == (exact[0] if exact else None)
        assert self.index.ancestors(tokens, namespace) == by_length
        assert _set(self.index.descendants(tokens, namespace)) == _set(descendants)
        serving = self.index.serving(tokens, namespace)
        assert (serving is not None) == any(_serves(e, ids, len(ids)) == len(ids) > 0 for e in here)

    @invariant()
    def holds_together(self) -> None:
        self.index.check_integrity()
        assert len(self.index) == len(self.entries)
        assert _set(self.index) == _set(self.entries)


def _set(entries: Any) -> list[tuple[Any, ...]]:
    return sorted((e.namespace, e.tokens.tolist(), e.trimmable, e.reusable_from, e.label) for e in entries)


def _serves(donor: Entry, ids: list[int], limit: int) -> int:
    """Return the longest length that ``donor`` serves, by trying them all."""
    for length in range(min(len(donor.tokens), len(ids), limit), 0, -1):
        usable = length == len(donor.tokens) or (donor.trimmable and donor.reusable_from <= length)
        if usable and donor.tokens[:length] == TokenIds.of(ids[:length]):
            return length
    return 0


IndexMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestIndexAgainstList = IndexMachine.TestCase

"""Which stored prefix serves a prompt best: a radix tree over token ids per namespace (DESIGN §5).

Edges are ranges of the entries' own token arrays and compare as arrays, so a lookup costs what the prompt
shares with the stored ones, however many there are. Every node knows the entry beneath it that reaches
down to the shortest prefix: no lookup ever goes through entries. Used for RAM and for SSD alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from .tokens import TokenIds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Indexed(Protocol):
    """What can be indexed. Nothing of it may change while it is in an index."""

    @property
    def namespace(self) -> str:
        """The namespace; entries of two never meet."""
        ...

    @property
    def tokens(self) -> TokenIds:
        """The exact prefix whose state it is."""
        ...

    @property
    def trimmable(self) -> bool:
        """Whether shorter prefixes than ``tokens`` can be served from it."""
        ...

    @property
    def reusable_from(self) -> int:
        """The shortest prefix in tokens that can be served from it, when it is trimmable."""
        ...


E = TypeVar("E", bound=Indexed)


@dataclass(frozen=True, slots=True)
class Match(Generic[E]):
    """The first ``length`` tokens can be served from ``entry``.

    ``diverged_at``: how many tokens of the prompt anything stored shares, usable or not; at least ``length``.
    """

    entry: E
    length: int
    diverged_at: int


class _Node(Generic[E]):
    """The prefix ``source[:end]``; the edge from its parent is ``source[start:end]``.

    ``source`` is the token array of an entry at or beneath this node, of its own entry if it has one: so the
    tree keeps no array alive that no entry keeps. ``best`` is the trimmable entry at or beneath it with the
    lowest ``rank``.
    """

    __slots__ = ("best", "children", "end", "entry", "rank", "source", "start")

    def __init__(self, source: TokenIds, start: int, end: int) -> None:
        self.source = source
        self.start = start
        self.end = end
        self.children: dict[int, _Node[E]] = {}
        self.entry: E | None = None
        self.best: E | None = None
        self.rank = _NO_RANK


_Rank = tuple[float, int]
_NO_RANK: _Rank = (float("inf"), 0)
_NOTHING = TokenIds.of(())


def _rank(entry: Indexed) -> _Rank:
    """Order entries by the shortest prefix that they serve, then by size: the cheaper one is lent."""
    return (entry.reusable_from, len(entry.tokens)) if entry.trimmable else _NO_RANK


class PrefixIndex(Generic[E]):
    """Entries by (namespace, tokens), at most one for each. One owner at a time; nothing blocks.

    An entry serves exactly its own length, or, if it is trimmable, any length from ``reusable_from`` up to
    its own. Memory: at most two nodes an entry, no token is copied.
    """

    def __init__(self, entries: Iterable[E] = ()) -> None:
        self._roots: dict[str, _Node[E]] = {}
        self._count = 0
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[E]:
        for root in list(self._roots.values()):
            yield from _entries_from(root)

    # -- change -----------------------------------------------------------------------------------------

    def add(self, entry: E) -> E | None:
        """Index ``entry``; return the one with equal tokens whose place it took."""
        tokens = entry.tokens
        root = self._roots.setdefault(entry.namespace, _Node[E](_NOTHING, 0, 0))
        path, common = _walk(root, tokens)
        if common < path[-1].end:
            _split(path, common)
        if common < len(tokens):
            leaf = _Node[E](tokens, common, len(tokens))
            path[-1].children[tokens[common]] = leaf
            path.append(leaf)
        node = path[-1]
        replaced, node.entry = node.entry, entry
        if replaced is None:
            self._count += 1
            node.source = tokens
        else:
            gone, node.source = node.source, tokens
            _forget(path, replaced, gone)
        _raise_best(path, entry)
        return replaced

    def remove(self, entry: E) -> None:
        """Take ``entry`` out. KeyError unless it is the one that is indexed under its tokens."""
        path = self._path_to(entry.tokens, entry.namespace)
        if path is None or not (path[-1].entry is entry or path[-1].entry == entry):
            raise KeyError(f"no such entry of {len(entry.tokens)} tokens in namespace {entry.namespace!r}")
        node = path[-1]
        held, node.entry = node.entry, None
        self._count -= 1
        gone = node.source
        _prune(path)
        _forget(path, held, gone)
        if len(path) == 1 and not path[0].children and path[0].entry is None:
            del self._roots[entry.namespace]

    def clear(self) -> None:
        """Take everything out."""
        self._roots.clear()
        self._count = 0

    # -- look -------------------------------------------------------------------------------------------

    def get(self, tokens: TokenIds, namespace: str) -> E | None:
        """Return the entry with exactly these tokens."""
        path = self._path_to(tokens, namespace)
        return None if path is None else path[-1].entry

    def longest(self, tokens: TokenIds, namespace: str, limit: int) -> Match[E] | None:
        """Return an entry that serves the longest possible prefix of ``tokens``, of 1 to ``limit`` tokens.

        Of several, the one with exactly that length, else the one that reaches down furthest, else the
        shortest.
        """
        root = self._roots.get(namespace)
        if root is None:
            return None
        path, common = _walk(root, tokens)
        most = min(common, limit)
        for node in reversed(path):
            length = min(most, node.end)
            if length <= node.start:
                continue  # the root, or a node beyond the limit: its parent ends nearer to it
            if length == node.end and node.entry is not None:
                return Match(node.entry, length, common)
            if node.best is not None and node.rank[0] <= length:
                return Match(node.best, length, common)
        return None

    def serving(self, tokens: TokenIds, namespace: str) -> E | None:
        """Return an entry that serves exactly ``tokens``: that one, or a longer one that trims to it."""
        match = self.longest(tokens, namespace, len(tokens))
        return match.entry if match is not None and match.length == len(tokens) else None

    def common_prefix(self, tokens: TokenIds, namespace: str) -> int:
        """Return how many tokens anything stored shares with ``tokens``, usable or not."""
        root = self._roots.get(namespace)
        return 0 if root is None else _walk(root, tokens)[1]

    def ancestors(self, tokens: TokenIds, namespace: str) -> list[E]:
        """Return the entries whose tokens are a strict prefix of ``tokens``, shortest first."""
        root = self._roots.get(namespace)
        if root is None:
            return []
        path, common = _walk(root, tokens)
        return [
            node.entry
            for node in path
            if node.entry is not None and node.end <= common and node.end < len(tokens)
        ]

    def descendants(self, tokens: TokenIds, namespace: str) -> list[E]:
        """Return the entries of which ``tokens`` is a strict prefix, in no order."""
        root = self._roots.get(namespace)
        if root is None:
            return []
        path, common = _walk(root, tokens)
        if common < len(tokens):
            return []
        return [entry for entry in _entries_from(path[-1]) if len(entry.tokens) > len(tokens)]

    def _path_to(self, tokens: TokenIds, namespace: str) -> list[_Node[E]] | None:
        root = self._roots.get(namespace)
        if root is None:
            return None
        path, common = _walk(root, tokens)
        return path if common == len(tokens) == path[-1].end else None

    # -- check ------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Assert everything that the tree promises about itself. Walks all of it."""
        count = 0
        for namespace, root in self._roots.items():
            nodes = _nodes_from(root)
            owners = {id(node.source): node for node in nodes if node.entry is not None}
            assert owners, f"namespace {namespace!r} is empty"
            for node in reversed(nodes):
                _check_node(node, owners, is_root=node is root)
                if node.entry is not None:
                    assert node.entry.namespace == namespace, "an entry stands in a foreign namespace"
            count += len(owners)
        assert count == self._count, f"{count} entries in the tree, {self._count} counted"


def _walk(root: _Node[E], tokens: TokenIds) -> tuple[list[_Node[E]], int]:
    """Return the nodes that ``tokens`` leads through and how many tokens the tree shares with it.

    The last node may be shared only in part. Every token is compared once: what equals an entry's tokens so
    far follows that entry's nodes so far.
    """
    path, node, common = [root], root, 0
    while node.end < len(tokens):
        child = node.children.get(tokens[node.end])
        if child is None:
            return path, node.end
        path.append(child)
        if common < child.end:
            common = tokens.common_prefix(child.source, max(common, child.start))
            if common < child.end:
                return path, common
        node = child
    return path, node.end


def _split(path: list[_Node[E]], at: int) -> None:
    """Put a node at depth ``at`` into the edge of the last node of ``path``, and of ``path`` itself."""
    lower = path.pop()
    upper = _Node[E](lower.source, lower.start, at)
    path[-1].children[lower.source[lower.start]] = upper
    lower.start = at
    upper.children[lower.source[at]] = lower
    upper.best, upper.rank = lower.best, lower.rank
    path.append(upper)


def _prune(path: list[_Node[E]]) -> None:
    """Drop the last node of ``path`` if it is empty; a node that no longer branches melts into its child.

    What is gone leaves ``path``.
    """
    node = path[-1]
    if not node.children and len(path) > 1:
        path.pop()
        del path[-1].children[node.source[node.start]]
        node = path[-1]
    if node.entry is None and len(node.children) == 1 and len(path) > 1:
        (child,) = node.children.values()
        path.pop()
        child.start = node.start
        path[-1].children[node.source[node.start]] = child


def _raise_best(path: list[_Node[E]], entry: E) -> None:
    rank = _rank(entry)
    for node in path:
        if rank < node.rank:
            node.best, node.rank = entry, rank


def _forget(path: list[_Node[E]], gone: E | None, tokens: TokenIds) -> None:
    """Let no node of ``path`` refer to an entry that has left, nor to its token array."""
    for node in reversed(path):
        if node.source is tokens:
            node.source = _own_or_child_tokens(node)
        if node.best is gone:
            node.best, node.rank = _best_of(node)


def _own_or_child_tokens(node: _Node[E]) -> TokenIds:
    if node.entry is not None:
        return node.entry.tokens
    return next((child.source for child in node.children.values()), _NOTHING)


def _best_of(node: _Node[E]) -> tuple[E | None, _Rank]:
    best, rank = node.entry, _NO_RANK if node.entry is None else _rank(node.entry)
    for child in node.children.values():
        if child.rank < rank:
            best, rank = child.best, child.rank
    return (best, rank) if rank < _NO_RANK else (None, _NO_RANK)


def _nodes_from(top: _Node[E]) -> list[_Node[E]]:
    """Return ``top`` and every node beneath it, parents before children."""
    nodes = [top]
    for node in nodes:
        nodes.extend(node.children.values())
    return nodes


def _entries_from(top: _Node[E]) -> Iterator[E]:
    return (node.entry for node in _nodes_from(top) if node.entry is not None)


def _check_node(node: _Node[E], owners: dict[int, _Node[E]], *, is_root: bool) -> None:
    if not is_root:
        assert node.start < node.end, f"an edge of {node.end - node.start} tokens"
        assert node.entry is not None or len(node.children) > 1, "a node without a purpose"
        owner = owners.get(id(node.source))
        assert owner is not None, "a node keeps tokens alive that no entry has"
        assert owner.end >= node.end, "a node's tokens come from an entry above it"
    if node.entry is not None:
        assert len(node.entry.tokens) == node.end, "an entry stands at a wrong depth"
        assert node.entry.tokens == node.source, "an entry's node has other tokens"
    for first, child in node.children.items():
        assert child.start == node.end, "a gap between two edges"
        assert child.source[child.start] == first, "a child under a foreign token"
        assert child.source.common_prefix(node.source) >= node.end, "a child of another prefix"
    _, rank = _best_of(node)
    assert rank == node.rank, f"rank {node.rank} kept, {rank} found"
    assert (node.best is None) == (rank == _NO_RANK), "a best entry without a rank"
    assert node.best is None or _rank(node.best) == rank, "the best entry has another rank"

"""The nodes of the prefix index: a radix tree whose edges are ranges of the entries' own token arrays.

Functions change paths from the root, as ``walk`` returns them. None recurses: a conversation of thousands of
turns is a chain of thousands of nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from .tokens import TokenIds

if TYPE_CHECKING:
    from collections.abc import Iterator


class Indexed(Protocol):
    """What can be indexed. Nothing of it may change while it is in an index, nor be made anew when asked."""

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
Rank: TypeAlias = tuple[float, int]
NO_RANK: Rank = (float("inf"), 0)
NOTHING = TokenIds.of(())


class Node(Generic[E]):
    """The prefix ``source[:end]``; the edge from its parent is ``source[start:end]``.

    ``source`` is the token array of a longest entry at or beneath this node: so the tree keeps no array alive
    that no entry keeps, and a walk compares with one array as far as it follows that entry. ``best`` is the
    trimmable entry at or beneath it with the lowest ``rank``.
    """

    __slots__ = ("best", "children", "end", "entry", "rank", "source", "start")

    def __init__(self, source: TokenIds, start: int, end: int) -> None:
        self.source = source
        self.start = start
        self.end = end
        self.children: dict[int, Node[E]] = {}
        self.entry: E | None = None
        self.best: E | None = None
        self.rank = NO_RANK


def _rank(entry: Indexed) -> Rank:
    """Order entries by the shortest prefix that they serve, then by size: the cheaper one is lent."""
    return (entry.reusable_from, len(entry.tokens)) if entry.trimmable else NO_RANK


def walk(root: Node[E], tokens: TokenIds) -> tuple[list[Node[E]], int]:
    """Return the nodes that ``tokens`` leads through and how many tokens the tree shares with it.

    The last node may be shared only in part. Every token is compared once: what equals an entry's tokens so
    far follows that entry's nodes so far. A chain of turns costs one comparison, not one for each turn.
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


def split(path: list[Node[E]], at: int) -> None:
    """Put a node at depth ``at`` into the edge of the last node of ``path``, and of ``path`` itself."""
    lower = path.pop()
    upper = Node[E](lower.source, lower.start, at)
    path[-1].children[lower.source[lower.start]] = upper
    lower.start = at
    upper.children[lower.source[at]] = lower
    upper.best, upper.rank = lower.best, lower.rank
    path.append(upper)


def prune(path: list[Node[E]]) -> None:
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


def remember(path: list[Node[E]], entry: E) -> None:
    """Let the nodes of ``path`` know an entry that was added at its end; arrays of its length leave them."""
    tokens, rank = entry.tokens, _rank(entry)
    for node in path:
        if len(node.source) <= len(tokens):
            node.source = tokens
        if rank < node.rank:
            node.best, node.rank = entry, rank


def release(path: list[Node[E]], tokens: TokenIds) -> None:
    """Let no node of ``path`` refer to the token array of an entry that has left."""
    for node in reversed(path):
        if node.source is tokens:
            node.source = _longest_of(node)


def forget(path: list[Node[E]], gone: E) -> None:
    """Let no node of ``path`` refer to an entry that has left."""
    for node in reversed(path):
        if node.best is gone:
            node.best, node.rank = _best_of(node)


def _longest_of(node: Node[E]) -> TokenIds:
    own = NOTHING if node.entry is None else node.entry.tokens
    return max((child.source for child in node.children.values()), key=len, default=own)


def _best_of(node: Node[E]) -> tuple[E | None, Rank]:
    best, rank = node.entry, NO_RANK if node.entry is None else _rank(node.entry)
    for child in node.children.values():
        if child.rank < rank:
            best, rank = child.best, child.rank
    return (best, rank) if rank < NO_RANK else (None, NO_RANK)


def nodes_from(top: Node[E]) -> list[Node[E]]:
    """Return ``top`` and every node beneath it, parents before children."""
    nodes = [top]
    for node in nodes:
        nodes.extend(node.children.values())
    return nodes


def entries_from(top: Node[E]) -> Iterator[E]:
    """Yield the entries at and beneath ``top``."""
    return (node.entry for node in nodes_from(top) if node.entry is not None)


def check_node(node: Node[E], owners: dict[int, Node[E]], *, is_root: bool) -> None:
    """Assert what a node promises. ``owners``: the nodes with entries, by the identity of their arrays."""
    if not is_root:
        assert node.start < node.end, f"an edge of {node.end - node.start} tokens"
        assert node.entry is not None or len(node.children) > 1, "a node without a purpose"
        owner = owners.get(id(node.source))
        assert owner is not None, "a node keeps tokens alive that no entry has"
        assert owner.end >= node.end, "a node's tokens come from an entry above it"
        assert len(node.source) == len(_longest_of(node)), "a node's tokens are not the longest"
    if node.entry is not None:
        assert len(node.entry.tokens) == node.end, "an entry stands at a wrong depth"
        assert node.source.starts_with(node.entry.tokens), "an entry's node has other tokens"
    for first, child in node.children.items():
        assert child.start == node.end, "a gap between two edges"
        assert child.source[child.start] == first, "a child under a foreign token"
        assert child.source.common_prefix(node.source) >= node.end, "a child of another prefix"
    _, rank = _best_of(node)
    assert rank == node.rank, f"rank {node.rank} kept, {rank} found"
    assert (node.best is None) == (rank == NO_RANK), "a best entry without a rank"
    assert node.best is None or _rank(node.best) == rank, "the best entry has another rank"

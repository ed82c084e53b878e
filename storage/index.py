"""Which stored prefix serves a prompt best: a radix tree over token ids per namespace (DESIGN §5).

Edges are ranges of the entries' own token arrays and compare as arrays, so a lookup costs what the prompt
shares with the stored ones, however many there are. Every node knows the entry beneath it that reaches
down to the shortest prefix: no lookup ever goes through entries. Used for RAM and for SSD alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from .radix import (
    NOTHING,
    E,
    Indexed,
    Node,
    check_node,
    entries_from,
    forget,
    nodes_from,
    prune,
    release,
    remember,
    split,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .tokens import TokenIds

__all__ = ["Indexed", "Match", "PrefixIndex"]


@dataclass(frozen=True, slots=True)
class Match(Generic[E]):
    """The first ``length`` tokens can be served from ``entry``.

    ``diverged_at``: how many tokens of the prompt anything stored shares, usable or not; at least ``length``.
    """

    entry: E
    length: int
    diverged_at: int


class PrefixIndex(Generic[E]):
    """Entries by (namespace, tokens), at most one for each. One owner at a time; nothing blocks.

    An entry serves exactly its own length, or, if it is trimmable, any length from ``reusable_from`` up to
    its own. Memory: at most two nodes an entry, no token is copied.
    """

    def __init__(self, entries: Iterable[E] = ()) -> None:
        self._roots: dict[str, Node[E]] = {}
        self._count = 0
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[E]:
        for root in list(self._roots.values()):
            yield from entries_from(root)

    # -- change -----------------------------------------------------------------------------------------

    def add(self, entry: E) -> E | None:
        """Index ``entry``; return the one with equal tokens whose place it took."""
        tokens = entry.tokens
        root = self._roots.setdefault(entry.namespace, Node[E](NOTHING, 0, 0))
        path, common = walk(root, tokens)
        if common < path[-1].end:
            split(path, common)
        if common < len(tokens):
            leaf = Node[E](tokens, common, len(tokens))
            path[-1].children[tokens[common]] = leaf
            path.append(leaf)
        node = path[-1]
        replaced, node.entry = node.entry, entry
        if replaced is None:
            self._count += 1
        else:
            forget(path, replaced)
        remember(path, entry)
        return replaced

    def remove(self, entry: E) -> None:
        """Take ``entry`` out. KeyError unless it is the one that is indexed under its tokens."""
        path = self._path_to(entry.tokens, entry.namespace)
        held = None if path is None else path[-1].entry
        if path is None or held is None or not (held is entry or held == entry):
            raise KeyError(f"no such entry of {len(entry.tokens)} tokens in namespace {entry.namespace!r}")
        path[-1].entry = None
        self._count -= 1
        prune(path)
        release(path, held.tokens)
        forget(path, held)
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
        path, common = walk(root, tokens)
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
        return 0 if root is None else walk(root, tokens)[1]

    def ancestors(self, tokens: TokenIds, namespace: str) -> list[E]:
        """Return the entries whose tokens are a strict prefix of ``tokens``, shortest first."""
        root = self._roots.get(namespace)
        if root is None:
            return []
        path, common = walk(root, tokens)
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
        path, common = walk(root, tokens)
        if common < len(tokens):
            return []
        return [entry for entry in entries_from(path[-1]) if len(entry.tokens) > len(tokens)]

    def _path_to(self, tokens: TokenIds, namespace: str) -> list[Node[E]] | None:
        root = self._roots.get(namespace)
        if root is None:
            return None
        path, common = walk(root, tokens)
        return path if common == len(tokens) == path[-1].end else None

    # -- check ------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Assert everything that the tree promises about itself. Walks all of it."""
        count = 0
        for namespace, root in self._roots.items():
            nodes = nodes_from(root)
            owners = {id(node.entry.tokens): node for node in nodes if node.entry is not None}
            assert owners, f"namespace {namespace!r} is empty"
            for node in reversed(nodes):
                check_node(node, owners, is_root=node is root)
                if node.entry is not None:
                    assert node.entry.namespace == namespace, "an entry stands in a foreign namespace"
            count += len(owners)
        assert count == self._count, f"{count} entries in the tree, {self._count} counted"

"""What a disk holds now and what of it a power loss leaves: the crash model under tests/kit/disk.py.

Promised across a power loss: the bytes and length of a synced file, the entries of a synced folder.
Everything younger may be there wholly, in part or not at all. Written data tears at sectors, and a length may
be on the medium without the data (then there are zeros) or data without the length. A rename within a folder
is atomic; one between folders may leave both names, never none. Changes of names survive as a prefix of their
history or as any subset of it. A rename, removal or creation is durable once its folder is synced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that went to a file and not yet to the medium."""

    offset: int
    data: bytes

    def __deepcopy__(self, memo: object) -> Write:
        return self  # nothing in it changes

    def sectors(self) -> Iterator[Write]:
        """Yield the parts that can be torn from each other."""
        start = 0
        while start < len(self.data):
            at = self.offset + start
            length = SECTOR_BYTES - at % SECTOR_BYTES
            yield Write(at, self.data[start : start + length])
            start += length


def _apply(content: bytearray, write: Write) -> None:
    if len(content) < write.offset:
        content.extend(bytes(write.offset - len(content)))
    content[write.offset : write.offset + len(write.data)] = write.data


@dataclass(slots=True, eq=False)
class FileNode:
    """A file: ``data`` is what readers see, ``durable`` what the medium holds."""

    mtime_s: float
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    durable_mtime_s: float = 0.0
    pending: list[Write] = field(default_factory=list)
    links: int = 1
    handles: int = 0

    def write(self, offset: int, data: bytes) -> None:
        write = Write(offset, data)
        _apply(self.data, write)
        self.pending.append(write)

    def sync(self) -> None:
        for write in self.pending:
            _apply(self.durable, write)
        self.pending.clear()
        self.durable_mtime_s = self.mtime_s

    def lose_pending(self) -> None:
        """Take what was not synced as clean: what Linux does when an fsync fails."""
        self.pending.clear()

    def after_power_loss(self, chance: Random) -> FileNode:
        content = bytearray(self.durable)
        fate = chance.choice(("none", "all", "torn"))
        for write in self.pending if fate != "none" else ():
            for sector in write.sectors():
                if fate == "all" or chance.random() < 0.5:
                    _apply(content, sector)
        if fate == "torn" and self.pending:
            self._tear_length(content, chance)
        mtime_s = chance.choice((self.mtime_s, self.durable_mtime_s))
        return FileNode(mtime_s, content, bytearray(content), mtime_s)

    def _tear_length(self, content: bytearray, chance: Random) -> None:
        """Let the length be the old one, the new one or any between, whatever data is there."""
        lengths = [len(self.durable), len(content), len(self.data)]
        length = chance.choice([*lengths, chance.randint(min(lengths), max(lengths))])
        if length > len(content):
            content.extend(bytes(length - len(content)))
        del content[length:]


@dataclass(slots=True, eq=False)
class FolderNode:
    """A folder: ``entries`` is what callers see, ``durable`` what the medium holds."""

    mtime_s: float
    entries: dict[str, FileNode | FolderNode] = field(default_factory=dict)
    durable: dict[str, FileNode | FolderNode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One name of a folder set to a node, or removed."""

    folder: FolderNode
    name: str
    node: FileNode | FolderNode | None

    def apply(self, *, durably: bool) -> None:
        entries = self.folder.durable if durably else self.folder.entries
        if self.node is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.node


class Medium:
    """The tree of nodes and the history of names that no folder sync has made durable yet."""

    def __init__(self) -> None:
        self.root = FolderNode(0.0)
        self._history: list[tuple[Change, ...]] = []

    def change(self, *changes: Change) -> None:
        """Make the changes visible at once, the first being a rename's target; durable by a folder sync."""
        for change in changes:
            change.apply(durably=False)
        self._history.append(changes)

    def sync_folder(self, folder: FolderNode) -> None:
        """Make every change of the folder's names durable, and both halves of a rename out of it."""
        kept: list[tuple[Change, ...]] = []
        for group in self._history:
            done, rest = self._due(group, folder)
            for change in done:
                change.apply(durably=True)
                kept = _without(kept, change)
            if rest:
                kept.append(rest)
        self._history = kept

    @staticmethod
    def _due(group: tuple[Change, ...], folder: FolderNode) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
        if group[-1].folder is folder:  # the only change, or a rename's source: never without its target
            return group, ()
        if group[0].folder is folder:
            return group[:1], group[1:]
        return (), group

    def after_power_loss(self, chance: Random) -> Medium:
        """Return what is found at the next start; this medium is not usable any more."""
        for group in self._survivors(chance):
            for change in group:
                change.apply(durably=True)
        after = Medium()
        after.root = _settled(self.root, chance, {})
        return after

    def _survivors(self, chance: Random) -> list[tuple[Change, ...]]:
        if chance.random() < 0.5:  # an ordered journal
            return self._history[: chance.randint(0, len(self._history))]
        survivors: list[tuple[Change, ...]] = []
        for group in self._history:
            split = len(group) == 2 and group[0].folder is not group[1].folder
            count = chance.choice((0, 1, 2) if split else (0, len(group)))
            survivors.append(group[:count])
        return survivors


def _without(history: list[tuple[Change, ...]], younger: Change) -> list[tuple[Change, ...]]:
    """Return the history without older changes of the name that ``younger`` set durably."""
    left = (
        tuple(old for old in group if old.folder is not younger.folder or old.name != younger.name)
        for group in history
    )
    return [group for group in left if group]


def _settled(folder: FolderNode, chance: Random, files: dict[int, FileNode]) -> FolderNode:
    """Return a fresh tree of what is durable; names of one file stay names of one file."""
    after = FolderNode(folder.mtime_s)
    for name, node in sorted(folder.durable.items()):
        if isinstance(node, FolderNode):
            after.entries[name] = _settled(node, chance, files)
            continue
        known = files.get(id(node))
        if known is None:
            files[id(node)] = known = node.after_power_loss(chance)
        else:
            known.links += 1
        after.entries[name] = known
    after.durable = dict(after.entries)
    return after

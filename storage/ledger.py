"""Dirty records by prefix, and what rides on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .dirty import Key, Record, Rider
from .index import PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tokens import TokenIds

P = TypeVar("P")


class Ledger(Generic[P]):
    """A prefix is a record, a rider of one record, or unknown. ``pending_bytes`` is what payloads weigh."""

    def __init__(self) -> None:
        self._index = PrefixIndex[Record[P]]()
        self._hosts: dict[Key, Record[P]] = {}
        self.pending_bytes = 0

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[Record[P]]:
        return iter(self._index)

    @property
    def pending(self) -> int:
        """How many checkpoints have a payload that is to be written or covered."""
        riders = (rider for record in self._index for rider in record.riders.values())
        return len(self._index) + sum(rider.item is not None for rider in riders)

    # -- records ----------------------------------------------------------------------------------------

    def get(self, tokens: TokenIds, namespace: str) -> Record[P] | None:
        """Return the record of exactly these tokens."""
        return self._index.get(tokens, namespace)

    def serving(self, tokens: TokenIds, namespace: str) -> Record[P] | None:
        """Return a record that covers these tokens, once written."""
        return self._index.serving(tokens, namespace)

    def ancestors(self, tokens: TokenIds, namespace: str) -> list[Record[P]]:
        """Return the records of strict prefixes, shortest first."""
        return self._index.ancestors(tokens, namespace)

    def add(self, record: Record[P]) -> None:
        """Take a record in; its prefix must be unknown."""
        self._index.add(record)
        record.live = True
        self.pending_bytes += record.item.nbytes

    def remove(self, record: Record[P]) -> None:
        """Take a record out; its riders are to be unhooked."""
        self._index.remove(record)
        record.live = False
        record.ticket = 0
        self.pending_bytes -= record.item.nbytes

    # -- riders -----------------------------------------------------------------------------------------

    def host(self, key: Key) -> Record[P] | None:
        """Return the record that a prefix rides on."""
        return self._hosts.get(key)

    def known(self, key: Key) -> bool:
        """Whether a prefix is a record or a rider."""
        return key in self._hosts or self._index.get(key[1], key[0]) is not None

    def ride(self, host: Record[P], rider: Rider[P], length: int) -> None:
        """Let the host's first ``length`` tokens ride on it."""
        key = rider_key(host, length)
        self.unride(key)
        host.riders[length] = rider
        self._hosts[key] = host
        if rider.item is not None:
            self.pending_bytes += rider.item.nbytes

    def unride(self, key: Key) -> None:
        """Forget a rider, if it is one."""
        host = self._hosts.get(key)
        if host is not None:
            self.unhook(host, len(key[1]))

    def unhook(self, host: Record[P], length: int) -> Rider[P]:
        """Take a rider off its host."""
        del self._hosts[rider_key(host, length)]
        rider = host.riders.pop(length)
        if rider.item is not None:
            self.pending_bytes -= rider.item.nbytes
        return rider

    def shed(self, rider: Rider[P]) -> None:
        """Let a rider's payload go."""
        if rider.item is not None:
            self.pending_bytes -= rider.item.nbytes
            rider.item = None

    def check_integrity(self) -> None:
        """Assert what this promises about itself. Walks all of it."""
        self._index.check_integrity()
        riders = [(record, length) for record in self._index for length in record.riders]
        assert {rider_key(*each): each[0] for each in riders} == self._hosts, "a rider without its host"
        items = [record.item for record in self._index]
        items += [item for record, length in riders if (item := record.riders[length].item) is not None]
        assert self.pending_bytes == sum(item.nbytes for item in items), "bytes are counted wrong"
        for record in self._index:
            assert record.live, "an indexed record that has left"
            assert record.key not in self._hosts, "a record that also rides"


def rider_key(host: Record[P], length: int) -> Key:
    """Return the key of a rider, made of its host's tokens: so it keeps no other array alive."""
    return (host.namespace, host.tokens[:length])

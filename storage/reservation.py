"""Room set aside for checkpoints that are being written, and their names until they are committed."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .directory_errors import ReservationVoid
from .entry import FILE_SUFFIX, TEMP_NAME, TEMP_SUFFIX, key_digest, namespace_folder

if TYPE_CHECKING:
    from pathlib import Path

    from .filesystem import Filesystem
    from .spec import CheckpointSpec
    from .stock import Stock
    from .tokens import TokenIds


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for one checkpoint: write it to ``temp_path``, ``publish``, then commit; or abandon."""

    id: str
    temp_path: Path
    final_path: Path
    bytes: int
    namespace: str
    tokens: TokenIds


def publish(fs: Filesystem, reservation: Reservation) -> None:
    """Give a synced container its final name, durably. Blocks; any thread.

    OSError: abandon the reservation.
    """
    fs.rename(reservation.temp_path, reservation.final_path)
    fs.sync_folder(reservation.final_path.parent)


class Reservations:
    """The reservations of one directory, in ``folder`` of its identity. One owner; ``undo`` blocks."""

    def __init__(self, fs: Filesystem, folder: Path, stock: Stock) -> None:
        self._fs = fs
        self._folder = folder
        self._stock = stock
        self._open: dict[str, Reservation] = {}
        self._void: set[str] = set()
        self._serial = itertools.count(1)

    def prepare(self, spec: CheckpointSpec, needed_bytes: int) -> Reservation:
        """Return a reservation under a free name, not yet counted."""
        entry_id, path = self._free_name(spec)
        temp_name = f"{entry_id}-{next(self._serial)}{TEMP_SUFFIX}"
        temp_path = self._folder / TEMP_NAME / temp_name
        return Reservation(entry_id, temp_path, path, needed_bytes, spec.namespace, spec.tokens)

    def _free_name(self, spec: CheckpointSpec) -> tuple[str, Path]:
        """Return the key's digest, with a suffix if that name is taken, and the path.

        It is by other tokens of one digest, and by an older file of these tokens: a name is never used
        again while anything may still remove it.
        """
        name = key_digest(spec.namespace, spec.tokens)
        folder = self._folder / namespace_folder(spec.namespace)
        ids = itertools.chain((name,), (f"{name}-{count}" for count in itertools.count(1)))
        paths = ((entry_id, folder / f"{entry_id}{FILE_SUFFIX}") for entry_id in ids)
        return next((entry_id, path) for entry_id, path in paths if not self.taken(entry_id, path))

    def taken(self, entry_id: str, path: Path) -> bool:
        """Whether an id is in use, or something has this name that may yet be removed or found."""
        stock = self._stock
        return (
            entry_id in self._open
            or stock.entries.get(entry_id) is not None
            or path in stock.outdated
            or path in stock.unread
            or stock.removals.holds(path)
        )

    def knows(self, path: Path) -> bool:
        """Whether a file is an entry's, a reservation's, or one that nobody can use."""
        stock, entry = self._stock, self._stock.entries.get(path.name.removesuffix(FILE_SUFFIX))
        return (
            (entry is not None and entry.path == path)
            or path in stock.outdated
            or stock.removals.holds(path)
            or any(path in {one.temp_path, one.final_path} for one in self._open.values())
        )

    def use(self, folder: Path) -> bool:
        """Whether something is to be written to a folder."""
        return any(one.final_path.parent == folder for one in self._open.values())

    def hold(self, reservation: Reservation) -> None:
        """Count it from now on."""
        self._open[reservation.id] = reservation
        self._stock.reserved_bytes += reservation.bytes

    def holds(self, reservation: Reservation) -> bool:
        """Whether it is neither committed nor abandoned."""
        return self._open.get(reservation.id) is reservation

    def settle(self, reservation: Reservation) -> None:
        """End a reservation that is to be committed; ReservationVoid, and no file, unless it is valid."""
        if self.holds(reservation) and reservation.id not in self._void:
            self._release(reservation)
            return
        if self.holds(reservation):
            self.undo(reservation)
        raise ReservationVoid(f"reservation {reservation.id} is not valid any more")

    def undo(self, reservation: Reservation) -> None:
        """End a reservation and remove what was written for it."""
        # It has one of the names, or none: what cannot be removed weighs no more than was reserved.
        gone = self._stock.removals.discard(reservation.temp_path, reservation.bytes)
        self._stock.removals.discard(reservation.final_path, reservation.bytes if gone else 0)
        if reservation.id in self._void:  # cleared means that no power loss brings it back
            with contextlib.suppress(OSError):
                self._fs.sync_folder(reservation.final_path.parent)
        self._release(reservation)

    def _release(self, reservation: Reservation) -> None:
        del self._open[reservation.id]
        self._void.discard(reservation.id)
        self._stock.reserved_bytes -= reservation.bytes

    def void(self, namespace: str | None) -> None:
        """Let nothing that is reserved now, in a namespace or anywhere, be committed."""
        self._void |= {one.id for one in self._open.values() if namespace in (None, one.namespace)}

    def check_integrity(self) -> None:
        """Assert that the accounts agree."""
        assert self._stock.reserved_bytes == sum(one.bytes for one in self._open.values())
        assert self._void <= self._open.keys()

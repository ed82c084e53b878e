"""Arrays to be filled from outside: allocated and evaluated, and on a CPU not written first.

MLX has no allocation without a fill (``mx.empty`` is zeros), and on a CPU the fill costs more than reading
the bytes does: 512 MB of zeros took 0.31 s of CPU time where reading them took 0.09 s, mostly for page faults
of 4 KiB. ``mx.load`` is the one operation that allocates and leaves the writing to somebody else, a file
object. So here it loads a file whose header names the tensors and whose data is left for later; on Linux the
buffers are then marked for huge pages before anybody touches them. Allocation and read took 0.12 s so.

On a GPU the arrays are zeros: loading there goes through a staging copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import json
import mmap
from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx

from ..device import computes_on_cpu
from .tensors import byte_view, mlx_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....storage.spec import TensorSpec

_CODES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
}
"""Types that safetensors and MLX name alike; arrays of others are zeros."""

_HUGE_PAGE_BYTES: Final = 2 << 20


class _Blank(io.RawIOBase):
    """A safetensors file of given tensors. Reading its data takes the time of a call and writes nothing."""

    def __init__(self, specs: dict[str, TensorSpec]) -> None:
        super().__init__()
        table: dict[str, object] = {}
        end = 0
        for name, spec in specs.items():
            place = [end, end + spec.nbytes]
            table[name] = {"dtype": _CODES[spec.dtype], "shape": spec.shape, "data_offsets": place}
            end += spec.nbytes
        header = json.dumps(table).encode()
        self._head = len(header).to_bytes(8, "little") + header
        self._end = len(self._head) + end
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position."""
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._end}[whence]
        return self._place

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fill the part of ``buffer`` that lies in the header."""
        part = self._head[self._place : self._place + len(buffer)]
        buffer[: len(part)] = part
        self._place += len(buffer)
        return len(buffer)


def blank_arrays(specs: Sequence[TensorSpec]) -> list[mx.array]:
    """Return evaluated arrays of these types and shapes, each with a buffer of its own and any contents.

    On the thread that evaluates; under its stream.
    """
    names = {str(place): spec for place, spec in enumerate(specs)}
    loaded = {name: spec for name, spec in names.items() if _leaves_data_alone(spec)}
    arrays = _loaded(loaded) if loaded else {}
    for name, spec in names.items():
        if name not in arrays:
            arrays[name] = mx.zeros(spec.shape, mlx_dtype(spec.dtype))
    mx.eval(arrays)  # pyright: ignore[reportUnknownMemberType]
    for name in loaded:
        _advise_huge_pages(byte_view(arrays[name]))
    return [arrays[name] for name in names]


def _leaves_data_alone(spec: TensorSpec) -> bool:
    return computes_on_cpu() and spec.dtype in _CODES and spec.nbytes > 0


def _loaded(specs: dict[str, TensorSpec]) -> dict[str, mx.array]:
    load = cast("Callable[..., dict[str, mx.array]]", mx.load)
    return load(_Blank(specs), format="safetensors")


def _advise_huge_pages(data: memoryview) -> None:
    """Ask for huge pages where whole ones fit. It is advice: what the system makes of it does not matter."""
    advise = _madvise()
    start = ctypes.addressof(ctypes.c_char.from_buffer(data))
    first = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    last = (start + len(data)) // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    if advise is not None and last > first:
        advise(first, last - first)


@functools.cache
def _madvise() -> Callable[[int, int], None] | None:
    advice = cast("int | None", getattr(mmap, "MADV_HUGEPAGE", None))
    if advice is None:
        return None
    with contextlib.suppress(OSError, AttributeError):
        call = ctypes.CDLL(None).madvise
        call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        return lambda address, size: cast("None", call(address, size, advice))
    return None

"""The KV container, format version 1: one checkpoint in one file (INTERFACE §6, docs/kv-container.md).

Pure functions over a Filesystem; any thread, they block on the disk. Every byte of a file is covered: the
header area by its hash, tokens and tensors by theirs, and what lies between must be zero.
"""

from .checksums import Checksum
from .container_reader import FEATURES, read_header
from .container_writer import file_bytes_of, write_container
from .header import Header, Section, StoredCheckpoint
from .layout import ALIGNMENT, MAGIC, VERSION
from .tensor_reader import never, read_tensors

__all__ = [
    "ALIGNMENT",
    "FEATURES",
    "MAGIC",
    "VERSION",
    "Checksum",
    "Header",
    "Section",
    "StoredCheckpoint",
    "file_bytes_of",
    "never",
    "read_header",
    "read_tensors",
    "write_container",
]

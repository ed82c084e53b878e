"""What can be wrong with a container file.

ContainerError
├─ NotAContainer          the file begins with something else
├─ UnsupportedVersion     a format version of another Samovar
├─ UnsupportedFeature     it needs something that this reader does not have
├─ TruncatedContainer     shorter than it says, or longer
├─ CorruptHeader          hash, structure or values of the part before the tensors
├─ CorruptTensor          a tensor's bytes, or the padding after them
├─ ContainerChanged       replaced by another file between reading the header and the tensors
├─ RestoreCancelled       the reader was told to stop
├─ SegmentMismatch        the segments handed in are not those of the tensors
└─ UnstorableCheckpoint   what was to be written breaks a rule or a limit of the format

Errors of the disk leave as OSError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ContainerError(Exception):
    """A container file cannot be used or made. ``path`` is the file, ``code`` a word for figures."""

    code = "container_error"
    retryable = False

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class NotAContainer(ContainerError):
    """The file does not begin with the magic bytes."""

    code = "not_a_container"


class UnsupportedVersion(ContainerError):
    """The file has another format version. It may be whole: another Samovar can read it."""

    code = "unsupported_version"


class UnsupportedFeature(ContainerError):
    """The file is whole, and needs ``features`` that this reader does not know."""

    code = "unsupported_feature"

    def __init__(self, path: Path, features: tuple[str, ...]) -> None:
        super().__init__(path, f"needs unknown features: {', '.join(features)}")
        self.features = features


class TruncatedContainer(ContainerError):
    """The file is shorter or longer than its header says, or ended while being read."""

    code = "truncated_container"


class CorruptHeader(ContainerError):
    """The header or the token section fails its hash, or says something impossible."""

    code = "corrupt_header"


class CorruptTensor(ContainerError):
    """A tensor fails its hash or is followed by bytes that are not zero. ``tensor`` says which."""

    code = "corrupt_tensor"

    def __init__(self, path: Path, tensor: str, problem: str) -> None:
        super().__init__(path, f"tensor {tensor} {problem}")
        self.tensor = tensor


class ContainerChanged(ContainerError):
    """Another container took the path after its header was read. Reading the header again helps."""

    code = "container_changed"
    retryable = True


class RestoreCancelled(ContainerError):
    """Reading stopped because nobody wants the result any more. The targets hold part of it."""

    code = "restore_cancelled"
    retryable = True

    def __init__(self, path: Path) -> None:
        super().__init__(path, "the restore was cancelled")


class SegmentMismatch(ContainerError):
    """The segments handed in, to write from or to read into, have other sizes than the tensors."""

    code = "segment_mismatch"


class UnstorableCheckpoint(ContainerError):
    """The checkpoint or its identity breaks a rule or a limit of the format. No file was made."""

    code = "unstorable_checkpoint"

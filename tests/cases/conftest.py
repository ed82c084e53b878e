"""A tiny model directory for tests that start the real program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[[Path], Path]:
    """Write a tiny llama with random weights to a folder; return it."""
    import mlx.core as mx  # noqa: PLC0415 - loads MLX
    from samovar.runtime.engine.models.gguf import convert_gguf  # noqa: PLC0415

    from tests.engine.conftest import tiny_metadata, tiny_tensors  # noqa: PLC0415

    def write(folder: Path) -> Path:
        gguf = tmp_path / "tiny.gguf"
        mx.save_gguf(gguf, tiny_tensors(), tiny_metadata())
        convert_gguf(gguf, folder, source="test")
        return folder

    return write

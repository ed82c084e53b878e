"""``samovar chat`` with the real default model, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]


def test_an_answer_is_all_that_is_printed_and_its_prompt_is_on_disk(
    default_model_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kv"
    settings = ("--set", f"cache.ssd.dir={folder}", "--max-tokens", "16", "--temperature", "0")
    ended = subprocess.run(
        [sys.executable, "-m", "samovar.runtime.cli", "chat", str(default_model_dir), *settings],
        input="What is the capital of France? Answer briefly.\n",
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Paris" in ended.stdout
    assert ended.stdout.endswith("\n")
    assert len(list(folder.rglob("*.kv"))) >= 1

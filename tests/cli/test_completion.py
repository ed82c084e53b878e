"""Shell completion, by the shells that are there."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.cli import main

if TYPE_CHECKING:
    from pathlib import Path

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
function=$(complete -p samovar | sed "s/.*-F \\([^ ]*\\).*/\\1/")
"$function"
printf "%s\n" "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "samovar"
    source.write_text(script("bash", capsys))
    (tmp_path / "mine.toml").write_text("")

    def complete(*words: str) -> set[str]:
        ended = subprocess.run(
            ["bash", "--norc", "-c", BASH, "bash", str(source), "samovar", *words],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            timeout=15,
        )
        assert ended.stderr == ""
        return set(ended.stdout.split())

    assert complete("brew") == set()
    assert {"serve", "chat", "cache", "config", "models", "bench", "doctor", "completion"} <= complete("")
    assert complete("cache", "v") == {"verify"}
    assert complete("completion", "") == {"bash", "zsh", "fish"}
    assert complete("chat", "--ma") == {"--max-tokens"}
    assert complete("serve", "--config", "mi") == {"mine.toml"}


@pytest.mark.parametrize(("shell", "check"), [("zsh", "-n"), ("fish", "--no-execute")])
def test_other_shells_can_read_their_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: str, check: str
) -> None:
    text = script(shell, capsys)
    assert "--max-tokens" in text or "max-tokens" in text
    if shutil.which(shell):
        source = tmp_path / "script"
        source.write_text(text)
        subprocess.run([shell, check, str(source)], check=True, timeout=15)


def test_a_shell_that_is_not_known_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "korn"])
    assert ended.value.code == 2

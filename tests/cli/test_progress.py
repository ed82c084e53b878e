from __future__ import annotations

import io
from dataclasses import dataclass

from samovar.runtime.progress import shown_progress


@dataclass(frozen=True)
class Seen:
    stage: str
    done: int
    total: int | None
    message: str


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_file_gets_a_few_lines_and_no_control_characters() -> None:
    stream = io.StringIO()
    with shown_progress(stream) as report:
        for done in range(1001):
            report(Seen("download", done, 1000, "a.whl"))
        report(Seen("convert", 0, 4, "a.gguf"))
        report(Seen("convert", 4, 4, "a.gguf"))
    assert stream.getvalue().splitlines() == [
        "download: a.whl 0%",
        "download: a.whl 25%",
        "download: a.whl 50%",
        "download: a.whl 75%",
        "download: a.whl 100%",
        "convert: a.gguf 0%",
        "convert: a.gguf 100%",
    ]


def test_a_stage_of_unknown_length_says_that_it_began_once() -> None:
    stream = io.StringIO()
    with shown_progress(stream) as report:
        for done in range(5):
            report(Seen("download", done, None, "a.whl"))
    assert stream.getvalue() == "download: a.whl\n"


def test_an_empty_stage_is_no_division_by_zero() -> None:
    stream = io.StringIO()
    with shown_progress(stream) as report:
        report(Seen("verify", 0, 0, "a"))
    assert stream.getvalue() == "verify: a\n"


def test_a_terminal_gets_bars_and_is_left_in_order_after_a_failure() -> None:
    stream = Terminal()
    try:
        with shown_progress(stream) as report:
            report(Seen("download", 1, 2, "a.whl"))
            raise OSError  # noqa: TRY301 - the point of the test
    except OSError:
        pass
    shown = stream.getvalue()
    assert "download a.whl" in shown
    assert "50%" in shown

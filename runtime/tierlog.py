"""Tells the log what happens to the SSD tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from ..actors.spilling.spill_reports import SpillNotice
    from ..storage.directory_figures import ForeignFolder, OpenReport
    from ..storage.entry import StoredEntry

_log = get_logger("samovar.cache")


class LineTierLog:
    """``tiers.TierLog`` as log lines: one when the directory is open, one warning if it needs attention.

    Both come again when something that a start could not do, and tried again, is done, or fails otherwise.

    Files of other models are normal; they are a warning when they leave this one less than half of the cap
    (``max_bytes``, 0 for none), since they are never deleted unasked.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def directory_opened(self, root: Path, report: OpenReport) -> None:
        """Log what was found; counts and bytes by reason where something cannot be used."""
        foreign_bytes = sum(folder.tally.size_bytes for folder in report.foreign)
        _log.info(
            "cache_opened",
            dir=str(root),
            entries=report.entries,
            bytes=report.entry_bytes,
            foreign_bytes=foreign_bytes,
            foreign={each.name: list(each.differs) for each in report.foreign},
            swept=report.swept,
            trimmed=report.trimmed,
        )
        if report.problems or report.failures:
            problems = {code: [tally.files, tally.size_bytes] for code, tally in report.problems.items()}
            _log.warning(
                "cache_files_unusable", dir=str(root), problems=problems, failures=list(report.failures)
            )
        if 0 < self._max_bytes < 2 * foreign_bytes:
            _log.warning(
                "cache_crowded",
                dir=str(root),
                max_bytes=self._max_bytes,
                foreign={each.name: _foreign(each) for each in report.foreign},
                mend="samovar cache du; samovar cache clear",
            )

    def restore_failed(self, entry: StoredEntry, error: Exception | None) -> None:
        """Log which file could not be restored, and why; the request was served without it."""
        cause = None if error is None else error.__cause__ or error
        _log.warning(
            "cache_restore_failed",
            file=str(entry.path),
            tokens=len(entry.tokens),
            error="it holds another prefix than its header says"
            if cause is None
            else f"{type(cause).__name__}: {cause}",
        )

    def spill_noticed(self, notice: SpillNotice) -> None:
        """Log that writes fail, or that they work again."""
        figures = {
            "failures": notice.failures,
            "pending": notice.pending,
            "pending_bytes": notice.pending_bytes,
            "degraded": notice.degraded,
        }
        if notice.event == "failing":
            _log.warning("cache_write_failing", error=str(notice.error), **figures)
        else:
            _log.info("cache_write_recovered", **figures)


def _foreign(folder: ForeignFolder) -> dict[str, object]:
    tally = folder.tally
    return {"files": tally.files, "bytes": tally.size_bytes, "differs": list(folder.differs)}

"""Tells the log what happens to the SSD tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from ..actors.spill_reports import SpillNotice
    from ..storage.directory_figures import OpenReport

_log = get_logger("samovar.cache")


class LineTierLog:
    """``tiers.TierLog`` as log lines: one when the directory is open, one warning if it needs attention."""

    def directory_opened(self, root: Path, report: OpenReport) -> None:
        """Log what was found; counts and bytes by reason where something cannot be used."""
        _log.info(
            "cache_opened",
            dir=str(root),
            entries=report.entries,
            bytes=report.entry_bytes,
            swept=report.swept,
            trimmed=report.trimmed,
        )
        if report.needs_attention:
            _log.warning(
                "cache_needs_attention",
                dir=str(root),
                problems={code: [tally.files, tally.size_bytes] for code, tally in report.problems.items()},
                foreign={
                    folder.name: {
                        "files": folder.tally.files,
                        "bytes": folder.tally.size_bytes,
                        "differs": list(folder.differs),
                    }
                    for folder in report.foreign
                },
                failures=list(report.failures),
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

"""Shows that a soak can fail: ``python -m tests.soak.proof [DEFECT]…`` soaks servers with defects put in.

Each must be found; the first words of what was found are printed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .planted import DEFECTS
from .profile import profile
from .run import Soak

MINUTES = 1.2


def found_by(defect: str) -> list[str]:
    """Soak a server that has ``defect``; return what was found."""
    with tempfile.TemporaryDirectory(prefix="samovar-soak-") as folder:
        soak = Soak(profile("tiny"), 1, Path(folder), ("-m", "tests.soak.planted", defect))
        soak.for_minutes(MINUTES)
    return [finding.what for finding in soak.tally.findings]


def main(defects: list[str]) -> int:
    missed = 0
    for defect in defects or list(DEFECTS):
        findings = found_by(defect)
        missed += not findings
        print(f"{defect}: {len(findings)} findings: {(findings or ['NONE'])[0][:160]}", flush=True)  # noqa: T201
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Write the tables of benchmarks/README.md and results/goals.md from benchmarks/results/*.json.

    python -m benchmarks.summary [--check]

What stands between the markers of README.md and all of goals.md come from the recorded results alone, so that
no figure is typed twice. ``--check`` writes nothing and ends with 1 if either is not what the results say; a
test does the same. Run it after recording a result, and commit both.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from .summary_goals import goals_page
from .summary_goals_cache import CACHE_GOALS
from .summary_goals_serving import SERVING_GOALS
from .summary_tables import tables_of

FOLDER: Final = Path(__file__).parent
RESULTS: Final = FOLDER / "results"
README: Final = FOLDER / "README.md"
GOALS: Final = RESULTS / "goals.md"
BEGIN: Final = "<!-- made by python -m benchmarks.summary: begin -->"
END: Final = "<!-- made by python -m benchmarks.summary: end -->"


def results(folder: Path = RESULTS) -> dict[str, Any]:
    """Return the recorded results by the names of their files."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def pages(found: dict[str, Any], readme: str) -> dict[Path, str]:
    """Return what README.md and goals.md have to be. Raises ValueError where README.md has no markers."""
    before, _, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"README.md has no {BEGIN!r} … {END!r}")
    tables = "\n\n".join(tables_of(name, result) for name, result in found.items())
    return {
        README: f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}",
        GOALS: goals_page(SERVING_GOALS + CACHE_GOALS, found),
    }


def stale(wanted: dict[Path, str]) -> list[Path]:
    """Return the pages that are not what they have to be."""
    return [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    wanted = pages(results(), README.read_text())
    for path in stale(wanted):
        print(f"{path.name}: {'not what the results say' if args.check else 'written'}")
        if args.check:
            raise SystemExit(1)
        path.write_text(wanted[path])


if __name__ == "__main__":
    main()

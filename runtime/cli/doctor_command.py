"""``samovar doctor``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from .options import load_config

if TYPE_CHECKING:
    from argparse import Namespace

    from ..finding import Finding


def run(args: Namespace) -> int:
    """Print each finding as it is made; 1 if anything fails."""
    from ..doctor import examine  # noqa: PLC0415 - not needed by other commands

    findings: list[Finding] = []
    for finding in examine(lambda: load_config(args)):
        findings.append(finding)
        if not args.json:
            sys.stdout.write(_line(finding))
            sys.stdout.flush()
    if args.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    return int(any(finding.state == "fail" for finding in findings))


def _line(finding: Finding) -> str:
    mend = f"\n      to mend: {finding.mend}" if finding.mend else ""
    return f"{finding.state:<5} {finding.check:<11} {finding.found}{mend}\n"

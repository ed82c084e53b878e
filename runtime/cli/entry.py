"""From arguments to an exit code: 0 ok, 1 failed, 2 usage or configuration error, 70 the root gave up."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ..config import ConfigError
from .complaints import FAILED, USAGE, complain, report
from .parser import build_parser

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    Failures that a user can cause or mend (errors with a ``code``, errors of the system) are one line on
    stderr; anything else is a bug and ends in a traceback. Usage errors raise SystemExit(2).
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except ConfigError as error:
        for problem in error.problems:
            complain(str(problem))
        return USAGE
    except KeyboardInterrupt:
        complain("interrupted")
        return FAILED
    except BrokenPipeError:
        # Whoever read our output has left; what is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - raised again unless it is of a kind users can mend
        return report(error)
    return code

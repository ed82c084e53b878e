"""From arguments to an exit code: 0 ok, 1 failed, 2 usage or configuration error, 70 the root gave up."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ..config import ConfigError
from .parser import build_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

OK = 0
FAILED = 1
USAGE = 2

# Errors whose cause is what the user asked for, not what happened on the way.
_USAGE_CODES = ("model_source_invalid", "model_not_found", "model_unreadable")
_NO_MLX = (
    "MLX does not load on this machine; on Linux install Samovar as samovar[cpu], or as samovar[cuda] with "
    "an NVIDIA driver (samovar doctor tells more)"
)


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
            _complain(str(problem))
        return USAGE
    except KeyboardInterrupt:
        _complain("interrupted")
        return FAILED
    except BrokenPipeError:
        # Whoever read our output has left; what is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - raised again unless it is of a kind users can mend
        return _failed(error)
    return code


def _failed(error: Exception) -> int:
    code = getattr(error, "code", None)
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "mlx":
        _complain(f"{_NO_MLX}: {error}")
    elif isinstance(code, str) or isinstance(error, OSError):
        _complain(" ".join(str(error).split()) or type(error).__name__)
    else:
        raise error
    return USAGE if code in _USAGE_CODES else FAILED


def _complain(text: str) -> None:
    sys.stderr.write(f"samovar: error: {text}\n")

"""What the command line says when something went wrong, and with which exit code."""

from __future__ import annotations

import sys

OK = 0
FAILED = 1
USAGE = 2

# Errors whose cause is what the user asked for, not what happened on the way.
_USAGE_CODES = ("model_source_invalid",)
_NO_MLX = (
    "MLX does not load on this machine; on Linux install Samovar as samovar[cpu], or as samovar[cuda] with "
    "an NVIDIA driver (samovar doctor tells more)"
)


def printable(text: str) -> str:
    """Return ``text`` without characters that could steer a terminal: names and words may be anybody's."""
    return "".join(character if character.isprintable() else "?" for character in text)


def complain(text: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"samovar: error: {printable(' '.join(text.split()))}\n")


def report(error: Exception) -> int:
    """Report an error that a user can cause or mend and return the exit code; raise any other again.

    Such errors have a ``code``, or are errors of the operating system. One with a true ``usage`` is the
    fault of what was configured.
    """
    code = getattr(error, "code", None)
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "mlx":
        complain(f"{_NO_MLX}: {error}")
    elif isinstance(code, str) or isinstance(error, OSError):
        complain(str(error) or type(error).__name__)
    else:
        raise error
    return USAGE if getattr(error, "usage", code in _USAGE_CODES) else FAILED

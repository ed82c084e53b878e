"""Reasoning in ``encrypted_content``: readable by us, opaque to others.

Clients that keep no state on the server (``store: false``) send back only that field of a reasoning item. It
hides nothing: the same response shows the reasoning as ``content``. So it is merely wrapped, with a mark by
which it is known again; what another server has encrypted is dropped.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

_MARK: Final = "samovar.1."


def sealed(text: str) -> str:
    """Return what carries ``text``."""
    return _MARK + urlsafe_b64encode(text.encode()).decode()


def unsealed(carried: str) -> str | None:
    """Return what ``sealed`` was given; None for anything else."""
    if not carried.startswith(_MARK):
        return None
    try:
        return urlsafe_b64decode(carried.removeprefix(_MARK)).decode()
    except ValueError:  # binascii.Error and UnicodeDecodeError are such
        return None

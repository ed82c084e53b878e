"""Who may ask, as it can change while the server runs: keys, host names, origins of web pages.

Only digests of keys are kept, so nothing that prints or dumps this layer's values can show a key.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from .options import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .options import HttpOptions

DIGEST_PREFIX = "sha256:"


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The SHA-256 digests of some keys."""

    digests: tuple[bytes, ...]

    @classmethod
    def of(cls, keys: Iterable[str]) -> KeyRing:
        """Take keys as configured: plain, or ``sha256:`` and 64 hexadecimal digits."""
        return cls(tuple(_digest(key) for key in keys))

    def opens(self, given: Sequence[bytes]) -> bool:
        """Return whether one of the keys given is on the ring. Takes as long for any key."""
        found = False
        for key in given:
            digest = sha256(key).digest()
            for mine in self.digests:  # no early exit
                found |= hmac.compare_digest(digest, mine)
        return found


@dataclass(frozen=True, slots=True)
class AccessRules:
    """One consistent set of rules. No key on a ring means that none is asked for."""

    clients: KeyRing
    admins: KeyRing
    hosts: frozenset[str]
    origins: frozenset[str]

    def ring_for(self, path: str) -> KeyRing | None:
        """Return the keys that open a route, or None where none is needed. Admin keys open every route."""
        if path.startswith("/admin/") and self.admins.digests:
            return self.admins
        if self.clients.digests:
            return KeyRing(self.clients.digests + self.admins.digests)
        return None

    def knows_host(self, host: str) -> bool:
        """Return whether a Host header names this machine or a configured name, with or without port."""
        name = host.lower()
        bare = name.rpartition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]
        return is_loopback(bare) or bare in self.hosts or name in self.hosts

    def knows_origin(self, origin: str) -> bool:
        """Return whether pages of ``origin`` may ask and read replies."""
        return origin in self.origins or "*" in self.origins


class Access:
    """The rules in force. Keep one for the life of the process: a restart of the server changes no rule."""

    def __init__(self, options: HttpOptions) -> None:
        self.rules = rules_of(options)

    def replace(self, options: HttpOptions) -> None:
        """Put the rules of ``options`` in force for every request from now on. Loop thread only."""
        self.rules = rules_of(options)


def rules_of(options: HttpOptions) -> AccessRules:
    """Return the rules that some options ask for."""
    return AccessRules(
        KeyRing.of(options.api_keys),
        KeyRing.of(options.admin_keys),
        frozenset(host.lower() for host in options.allowed_hosts),
        frozenset(options.cors_origins),
    )


def _digest(key: str) -> bytes:
    if key.startswith(DIGEST_PREFIX):
        return bytes.fromhex(key.removeprefix(DIGEST_PREFIX))
    return sha256(key.encode()).digest()

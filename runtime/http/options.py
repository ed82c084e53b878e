"""Settings of the HTTP layer, as plain values; the configuration maps its ``[server]`` table to them."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How to listen and whom to answer.

    ``unix_socket`` replaces host and port. Keys are plain or
    ``sha256:`` and 64 hexadecimal digits. ``max_body_bytes`` counts
    decompressed bytes. ``request_timeout_s`` runs from the first header to the last byte of a reply; None
    is no limit. ``keep_alive_s`` is the silence after which a stream gets an SSE comment. ``metrics`` says
    whether there is ``GET /metrics``.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    unix_socket: Path | None = None
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    allow_unauthenticated: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 16 * MIB
    request_timeout_s: float | None = None
    keep_alive_s: float = 10.0
    fault_injection: bool = False
    metrics: bool = True

    @property
    def loopback_only(self) -> bool:
        """Whether only this machine can connect."""
        return self.unix_socket is not None or is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address (IPv6 with or without brackets) means this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False

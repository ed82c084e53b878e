"""Settings that are each fine and together are not, and settings this version cannot honour yet."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from .errors import DEFAULT, Origin, Problem
from .literals import describe
from .schema import Server
from .tree import all_keys, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .schema import Config
    from .tree import KeySpec, Path

_LOOPBACK_NAMES = ("localhost", "ip6-localhost", "ip6-loopback")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A key, or a section with all its keys, whose feature this version lacks.

    ``harmless`` values ask for nothing that the version does not do anyway. ``fatal`` says what becomes
    of others that differ from the default: a setting that changes answers, memory or what a client can
    ask for stops the start, since serving without it would not be what was asked for; one that only
    makes the same answers come faster is warned about, loudly, and the server starts.
    """

    key: str
    feature: str
    fatal: bool
    harmless: tuple[object, ...] = ()

    def covers(self, spec: KeySpec) -> bool:
        """Return whether the key is this one or lies in this section."""
        path = tuple(self.key.split("."))
        return spec.path[: len(path)] == path


# The one place that says what is not there yet. An issue that delivers a feature deletes its lines.
UNSUPPORTED = (
    Unsupported("kv.scheme", "TurboQuant", fatal=True, harmless=("kv8", "kv4", "config")),
    Unsupported("model.draft", "speculative decoding", fatal=True),
    Unsupported("model.adapters", "LoRA adapters", fatal=True),
    Unsupported("cache.ram.retention", "retention by cost and size", fatal=False),
    Unsupported("cache.ssd.layout", "storage in blocks and deltas", fatal=False),
    Unsupported("checkpoint", "checkpointing of replies in the making", fatal=False),
)


_OF_QUANTISED = frozenset((("kv", "group_size"), ("kv", "start")))
"""Settings that mean something with a quantised scheme only."""


def contradictions(config: Config, origins: Mapping[Path, Origin]) -> Iterator[Problem]:
    """Yield every pair of settings that cannot both hold."""
    yield from _cache_contradictions(config, origins)
    yield from _listening_contradictions(config, origins)
    yield from _homeless(config, origins)


def unsupported(config: Config, origins: Mapping[Path, Origin]) -> Iterator[tuple[bool, Problem]]:
    """Yield (fatal, problem) for each setting away from its default that is not honoured.

    Because this version lacks the feature, or because another setting leaves it without a meaning.
    """
    for spec in all_keys():
        value = value_of(config, spec.path)
        if spec.path not in origins or value == spec.default:
            continue
        for entry in UNSUPPORTED:
            if entry.covers(spec) and value not in entry.harmless:
                found = describe(spec.kind.write(value))
                expected = f"the default, since {entry.feature} is not in this version yet"
                hint = "" if entry.fatal else "the server runs without it"
                yield entry.fatal, Problem(origins[spec.path], spec.dotted, found, expected, hint)
        if config.kv.scheme == "bf16" and spec.path in _OF_QUANTISED:
            found = describe(spec.kind.write(value))
            expected = 'a quantised kv.scheme beside it, not "bf16"'
            yield (
                False,
                Problem(origins[spec.path], spec.dotted, found, expected, "the server runs without it"),
            )


def is_loopback(host: str) -> bool:
    """Return whether listening on ``host`` reaches this machine only."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _cache_contradictions(config: Config, origins: Mapping[Path, Origin]) -> Iterator[Problem]:
    ram, ssd = config.cache.ram, config.cache.ssd
    if ram.max == 0 and ssd.enabled:
        yield Problem(
            _origin(origins, "cache.ram.max"),
            "cache.ram.max",
            f'"0" with cache.ssd.dir = "{ssd.dir}" ({_origin(origins, "cache.ssd.dir")})',
            "a memory tier above the disk tier, or neither",
            'set cache.ssd.dir = "off" too, or --ssd off',
        )
    if ram.hard_max is not None and ram.hard_max < ram.max:
        yield Problem(
            _origin(origins, "cache.ram.hard_max"),
            "cache.ram.hard_max",
            f"{ram.hard_max} bytes, less than cache.ram.max ({ram.max} bytes)",
            "at least cache.ram.max",
        )


def _listening_contradictions(config: Config, origins: Mapping[Path, Origin]) -> Iterator[Problem]:
    server = config.server
    if server.unix_socket is not None:
        for name in ("host", "port"):
            origin = _origin(origins, f"server.{name}")
            if origin.kind == "flag" or getattr(server, name) != getattr(Server(), name):
                yield Problem(
                    origin,
                    f"server.{name}",
                    f"a setting beside server.unix_socket ({_origin(origins, 'server.unix_socket')})",
                    "one of the two: with a socket the server listens nowhere else",
                )
    elif not (is_loopback(server.host) or server.api_keys or server.allow_unauthenticated):
        yield Problem(
            _origin(origins, "server.host"),
            "server.host",
            f'"{server.host}", which others can reach, and no server.api_keys',
            "a loopback address, or api_keys, or allow_unauthenticated = true",
        )


def _homeless(config: Config, origins: Mapping[Path, Origin]) -> Iterator[Problem]:
    """Yield the paths that begin in the home folder of a user that does not exist."""
    named = {"cache.ssd.dir": config.cache.ssd.dir, "server.unix_socket": config.server.unix_socket or ""}
    for dotted, text in named.items():
        try:
            FilePath(text).expanduser()
        except RuntimeError:
            yield Problem(_origin(origins, dotted), dotted, describe(text), "a path from an existing home")


def _origin(origins: Mapping[Path, Origin], dotted: str) -> Origin:
    return origins.get(tuple(dotted.split(".")), DEFAULT)

"""What a running server may take from a configuration that was read again. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .checks import contradictions
from .errors import ConfigError
from .tree import all_keys, build, value_of

if TYPE_CHECKING:
    from .load import Loaded
    from .schema import Config

LIVE_KEYS = frozenset(
    {
        "server.api_keys",
        "server.admin_keys",
        "server.allowed_hosts",
        "server.cors_origins",
        "server.shutdown_timeout",
        "model.aliases",
        "logging.level",
        "logging.format",
    }
)
"""Keys that take effect without a restart. Everything else keeps the value of the start."""


@dataclass(frozen=True, slots=True)
class Reload:
    """``config`` is in force from now on. ``applied`` and ``kept`` name the keys that differ.

    Both in the order of the schema. ``kept`` ones have another value in the sources than the one in force,
    which only a restart changes.
    """

    config: Config
    applied: tuple[str, ...]
    kept: tuple[str, ...]


def plan_reload(now: Config, loaded: Loaded) -> Reload:
    """Take the live keys from ``loaded`` and all others from ``now``.

    Raises ConfigError where the mixture contradicts itself though ``loaded`` does not: a new file may do
    without keys because it also listens elsewhere, which this process cannot.
    """
    changed = [spec for spec in all_keys() if value_of(now, spec.path) != value_of(loaded.config, spec.path)]
    live = {spec.path for spec in changed if spec.dotted in LIVE_KEYS}
    config = build(
        {spec.path: value_of(loaded.config if spec.path in live else now, spec.path) for spec in all_keys()}
    )
    if problems := list(contradictions(config, loaded.origins)):
        raise ConfigError(problems)
    return Reload(
        config,
        tuple(spec.dotted for spec in changed if spec.path in live),
        tuple(spec.dotted for spec in changed if spec.path not in live),
    )

"""Reading the configuration again while the server runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .config import ConfigError
from .config.reloading import plan_reload
from .logs import change_logging, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import Config, Loaded
    from .config.reloading import Reload

_log = get_logger("samovar.config")


class Reloader:
    """Holds the configuration in force. ``adopt`` puts live settings into the tree; loop thread only.

    A configuration that cannot be read or used changes nothing.
    """

    def __init__(
        self, config: Config, load: Callable[[], Loaded] | None, adopt: Callable[[Config], None]
    ) -> None:
        self.config = config
        self._load = load
        self._adopt = adopt

    @property
    def possible(self) -> bool:
        """Whether there is anything to read again."""
        return self._load is not None

    async def reload(self) -> bool:
        """Read every source again and apply what can change; False where that was refused.

        What was applied, what needs a restart, and what is wrong are each one line in the log.
        """
        assert self._load is not None
        try:
            loaded = await asyncio.to_thread(self._load)
            reload = plan_reload(self.config, loaded)
        except ConfigError as error:
            _log.error("reload_refused", problems=[str(problem) for problem in error.problems])
            return False
        self._apply(reload)
        for warning in loaded.warnings:
            _log.warning("setting_ignored", key=warning.key, reason=str(warning))
        return True

    def _apply(self, reload: Reload) -> None:
        self.config = reload.config
        if any(name.startswith("logging.") for name in reload.applied):
            change_logging(reload.config.logging)
        self._adopt(reload.config)
        _log.info("reloaded", applied=list(reload.applied))
        if reload.kept:
            _log.warning("reload_needs_restart", keys=list(reload.kept))

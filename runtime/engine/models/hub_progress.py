"""The hub client's own progress, told as ours."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any

from .progress import Progress, ProgressEvent

if TYPE_CHECKING:
    from collections.abc import Callable

_PARTS = 100


class HubProgress:
    """Tells how much of ``total_bytes`` has come, by what the hub client's bars say.

    Their own totals grow with every file that is begun, so they say nothing. Any thread; the callback is
    called by one at a time.
    """

    def __init__(self, progress: Progress, repository: str, total_bytes: int) -> None:
        self._progress = progress
        self._repository = repository
        self._total_bytes = total_bytes
        self._lock = threading.Lock()
        self._told = -1

    def tell(self, bytes_done: int) -> None:
        """Take the bytes of all files so far. Tells each hundredth once."""
        with self._lock:
            part = _PARTS * bytes_done // self._total_bytes if self._total_bytes else 0
            if part > self._told:
                self._told = part
                event = ProgressEvent("download", bytes_done, self._total_bytes or None, self._repository)
                self._progress(event)

    def bars(self) -> Callable[..., Any]:
        """Return the class of bars to give to the client: they draw nothing and tell what they count."""
        from tqdm import tqdm  # noqa: PLC0415 - comes with the hub's client, which is loaded late too

        tell = self.tell

        class Bar(tqdm):  # pyright: ignore[reportMissingTypeArgument, reportUntypedBaseClass]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{**kwargs, "file": io.StringIO()})  # pyright: ignore[reportUnknownMemberType]

            def display(self, *_args: Any, **_kwargs: Any) -> None:
                """Draw nothing."""

            def update(self, n: float | None = 1) -> bool | None:
                """Count, and tell if bytes are counted; files are too few to say much."""
                drawn = super().update(n)
                if self.unit == "B":
                    tell(int(self.n))
                return drawn

        return Bar

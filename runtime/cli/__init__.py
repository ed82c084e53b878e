"""The command line. ``main`` is the console script ``samovar``.

Only the command that is run imports what it needs: neither ``samovar version`` nor ``samovar config``
loads MLX, aiohttp or anything else of weight.
"""

from .entry import main

__all__ = ["main"]

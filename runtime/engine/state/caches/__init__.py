"""Live cache layers that mlx-lm lacks, and the way of every layer into a batch and out of it (seed §2).

``batch_of``, ``row_of`` and ``share_offsets`` are for batches, ``quantised`` and ``quantisable`` for KV
schemes. Of mlx-lm are the layers of one row, but for the quantised ring, and recurrent states; batches of
attention are ours.
"""

from .batch_growing import share_offsets
from .quantising import quantisable, quantised
from .sharing import BatchCache, batch_of, can_share, row_of

__all__ = ["BatchCache", "batch_of", "can_share", "quantisable", "quantised", "row_of", "share_offsets"]

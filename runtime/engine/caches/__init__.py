"""Live cache layers that mlx-lm lacks, and the way of every layer into a batch and out of it (seed §2).

``batch_of`` and ``row_of`` are for batches, ``quantised`` and ``quantisable`` for KV schemes. What is
mlx-lm's own stays so: plain, quantised and rotating layers of one row, recurrent states, plain batches.
"""

from .quantising import quantisable, quantised
from .sharing import BatchCache, batch_of, can_share, row_of

__all__ = ["BatchCache", "batch_of", "can_share", "quantisable", "quantised", "row_of"]

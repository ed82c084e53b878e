"""Everything that touches MLX: model sources, loading, tokenising, batching and the lane loop.

Importing this package loads OpenBLAS (where the system has it) before MLX can be imported, because
the Linux CPU wheel of MLX otherwise binds to the reference BLAS (DESIGN §4). No other package of
Samovar imports ``mlx``.
"""

from .cpu.blas import preload_openblas

preload_openblas()

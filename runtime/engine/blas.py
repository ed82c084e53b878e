"""OpenBLAS for MLX on Linux CPUs."""


def preload_openblas() -> None:
    """Placeholder that the engine helper replaces."""

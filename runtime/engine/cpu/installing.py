"""All that a CPU computes otherwise than MLX does, put in place at once."""

from __future__ import annotations

from . import attention, products, rotary


def install() -> None:
    """Use the computations of this package in this process where they are the faster ones; idempotent."""
    attention.install()
    products.install()
    rotary.install()

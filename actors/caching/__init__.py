"""Residency's parts: the RAM tier, lending, restores and the gate before them. No actor of its own."""

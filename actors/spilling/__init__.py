"""Durability's parts: what waits to be written, what became of it, and who is told. No actor of its own."""

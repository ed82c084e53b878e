"""Bytes and files. Nothing here imports asyncio or MLX; only ``fs.py`` touches the file calls of ``os``."""

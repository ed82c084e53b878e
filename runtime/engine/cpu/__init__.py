"""What makes MLX fast enough on a Linux CPU: OpenBLAS, and attention in NumPy."""

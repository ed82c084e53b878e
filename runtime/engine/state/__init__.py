"""KV state: what layers hold, checkpoints of it, restores, batched twins, schemes and what they cost."""

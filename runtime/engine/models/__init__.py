"""From what a user names to a model in memory: sources, downloads, GGUF conversion, store, loading."""

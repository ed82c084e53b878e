"""The insides of a lane: rows prefill, decode in batches, are sampled, and end. Start with backend.py."""

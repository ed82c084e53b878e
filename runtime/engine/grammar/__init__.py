"""Replies that must match something: constraints compiled by llguidance, as masks over the vocabulary."""

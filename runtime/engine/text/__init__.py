"""Tokens and text: templates, tokenizing, streaming detokenizing, stop strings, the ids of past replies."""

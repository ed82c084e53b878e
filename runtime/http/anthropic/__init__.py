"""Anthropic's Messages: from its bodies to calls, and from generations to its messages and events."""

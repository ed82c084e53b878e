"""From the events of generations to what an answer consists of: pieces of text, reasoning and tool calls."""

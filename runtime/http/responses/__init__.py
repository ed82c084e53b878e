"""OpenAI's Responses API: what its items mean, what it remembers, and how its replies are written."""

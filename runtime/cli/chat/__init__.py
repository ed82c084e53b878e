"""``samovar chat``: a conversation in the terminal, with a running server or with a model in this process."""

"""One file per actor: its messages, the actor, its typed facade; plus the values that they exchange."""

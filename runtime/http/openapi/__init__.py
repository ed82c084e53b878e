"""``/openapi.json``: what each route takes, by the models that validate it, and what it answers."""

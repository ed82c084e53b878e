"""The HTTP interface: OpenAI routes, health and administration over the ``Serving`` protocol."""

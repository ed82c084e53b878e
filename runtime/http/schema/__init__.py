"""What clients may send: one model for each body, which validates requests and makes ``/openapi.json``."""

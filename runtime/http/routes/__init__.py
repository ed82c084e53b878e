"""One module for each family of routes: from a validated body to an answer on the wire."""

"""Everything that runs: the actor kernel, the engine, the HTTP server, configuration and the command line."""

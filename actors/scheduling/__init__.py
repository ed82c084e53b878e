"""The scheduler's parts: intake, order, placement, blame. Plain objects that run in its handlers."""

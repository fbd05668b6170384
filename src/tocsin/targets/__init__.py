"""Where runs are delivered. Each satisfies the engine's `Deliver`."""

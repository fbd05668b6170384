"""The targets that execute runs: each satisfies the engine's `Deliver`."""

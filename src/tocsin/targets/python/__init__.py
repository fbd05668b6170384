"""Python functions as targets: on the event loop, in threads, in processes."""

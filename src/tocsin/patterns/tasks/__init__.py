"""Task queues and their schedulers."""

"""Task queues, and the schedulers that push tasks into them."""

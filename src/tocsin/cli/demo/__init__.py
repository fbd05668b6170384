"""`tocsin demo`: the command, its example jobs, and its story."""

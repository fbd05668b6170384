"""HTTP requests as targets."""

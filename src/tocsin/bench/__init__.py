"""What `tocsin bench` measures."""

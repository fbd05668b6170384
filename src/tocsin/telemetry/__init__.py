"""What Tocsin tells about itself."""

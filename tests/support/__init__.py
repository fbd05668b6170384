"""What tests share: servers, programs, models, and ways to wait."""

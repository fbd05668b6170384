"""Messages to brokers as targets."""

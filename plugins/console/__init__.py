"""What an operator sees of the broker: an HTTP API of its clients."""

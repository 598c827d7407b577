"""What is told of clients and of the broker."""

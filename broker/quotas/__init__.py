"""What clients may take of the broker, each and all together."""

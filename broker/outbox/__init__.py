"""What waits for one subscriber, and the account of it."""

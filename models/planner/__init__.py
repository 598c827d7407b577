"""What a fleet needs, predicted before it is built."""

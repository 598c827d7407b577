"""Batches of rows that requests stage, and that the broker publishes once."""

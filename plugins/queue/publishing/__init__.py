"""Batches of rows that requests have staged, and that the broker publishes once."""

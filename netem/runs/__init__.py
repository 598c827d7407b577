"""Scenarios, and their runs with brokers and clients."""

"""Engines keep the messages of queues: one contract, and its implementations."""

"""Queues on many nodes (paper 001, chapter 3): rings, controllers and their baseline; pure."""

"""Recordings of a running broker's clients and messages."""

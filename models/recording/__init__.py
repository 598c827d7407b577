"""Recordings of what a running broker shows of its clients and messages."""

"""The queue's HTTP API."""

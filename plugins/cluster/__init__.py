"""Brokers that are one broker, by way of a Redis or Valkey server."""

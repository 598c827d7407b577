"""The protocol between the queue's HTTP API and its Python client."""

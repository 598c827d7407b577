"""Machines as network namespaces, and a Redis cluster on them."""

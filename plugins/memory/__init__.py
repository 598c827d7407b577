"""Keeps the payloads of waiting messages: by reference, spilled to files, or copied."""

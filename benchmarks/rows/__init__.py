"""The rows of ``penstock bench``: each asks every peer one question."""

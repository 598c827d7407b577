"""A Redis cluster on the fabric's rings: its files, its start, its state and its changes."""

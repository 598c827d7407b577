"""The receiving side of one client: bytes to packets, packets to their functions."""

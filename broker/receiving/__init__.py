"""What comes from one client: bytes to packets, packets to their functions."""

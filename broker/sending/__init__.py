"""What leaves for one client."""

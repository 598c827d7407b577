"""Reports on clients and on the broker."""

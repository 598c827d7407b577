"""Emulated links: networks of hosts with links for packets, and a relay for TCP connections."""

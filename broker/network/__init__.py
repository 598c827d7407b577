"""Sockets, and who is served when."""

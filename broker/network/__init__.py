"""Sockets and their layers, and the order in which connections are served."""

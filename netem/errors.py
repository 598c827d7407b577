"""What goes wrong around a network."""

from __future__ import annotations


class NetemError(Exception):
    """The network cannot be had as it was asked for; the text says why."""

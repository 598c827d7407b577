"""What goes wrong around a network."""

from __future__ import annotations


class NetemError(Exception):
    """The network cannot be had as it was asked for; the text says why."""


class RunError(NetemError):
    """A broker or a client has failed during a run; the text names it, with the end of its log."""

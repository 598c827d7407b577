"""What goes wrong around a network."""

from __future__ import annotations


class NetemError(Exception):
    """The network cannot be had as it was asked for; the text says why."""


class RunError(NetemError):
    """A broker, a client or what carries links has failed during a run; the text names it."""

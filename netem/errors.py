"""Errors of emulated networks and of runs on them."""

from __future__ import annotations


class NetemError(Exception):
    """An error: the network, file or command cannot be used as given; the text says why."""


class RunError(NetemError):
    """An error: a broker, a client or a link engine failed during a run; the text names it."""

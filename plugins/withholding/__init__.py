"""Policies that hold large messages back, one subscriber at a time (paper 002)."""

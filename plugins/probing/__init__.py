"""Estimates the RTT of each subscriber."""

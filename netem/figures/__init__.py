"""Rows, figures, reports and plots of a run."""

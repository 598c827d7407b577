"""The evaluations of the papers: sweeps, numbers, statements and plots; not in the wheel."""

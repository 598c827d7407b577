"""The evaluations of the papers: sweeps, numbers, statements and plots. No wheel has them."""

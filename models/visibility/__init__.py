"""VMA, the queue with a visibility timeout of paper 004: its analytic network and a simulation."""

"""The simulations themselves, which the planner and the evaluations of the papers run."""

"""The planner predicts what a fleet needs before it is built."""

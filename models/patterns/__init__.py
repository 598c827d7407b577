"""PerfMP, the queueing patterns of publish/subscribe of paper 003, as simulation."""

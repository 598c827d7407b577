"""The loads of benchmarks: packets, clients and the processes that they run in."""

"""Speed and memory beside the peers, in one run; see ``benchmarks/README.md``."""

"""The speed and memory of Penstock and its peers in one run; see ``benchmarks/README.md``."""

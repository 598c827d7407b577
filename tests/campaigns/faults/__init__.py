"""The standing campaign: what a broker promises, held against faults that are made on purpose.

Theory of operation. A *fault* (`case.Fault`) is done to a broker that runs as a process of its
own, in a folder of its own, with real clients. It returns *findings*: numbers, each with the bound
that the documentation promises. Whatever is random comes from one seed, which the table names.
Each fault is done to mosquitto as well where it has a counterpart; no bound is held against that.
"""

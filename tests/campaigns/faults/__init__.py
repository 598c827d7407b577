"""The campaign of faults: the broker's promises, tested against faults that are made on purpose.

Theory of operation. A *fault* (`case.Fault`) is made with a broker that runs as a process of its
own, in a folder of its own, with real clients. It returns *findings*: numbers, each with the bound
that the documentation promises. All random values come from one seed, which the table shows. Each
fault is made with mosquitto as well where it has a counterpart; no bound applies to it.
"""

"""What is done to a broker while it is measured: packets, clients and the processes they run in."""

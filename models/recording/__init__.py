"""What a running broker shows of its clients and messages, written down for the simulations."""

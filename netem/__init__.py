"""Networks with delay, loss and limited rate on one machine, and experiments on them."""

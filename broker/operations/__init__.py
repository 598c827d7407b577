"""What an operator sees of the running broker, and does to it: the parts of its `Operations`."""

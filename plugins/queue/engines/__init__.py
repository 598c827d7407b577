"""Where a queue's messages are kept: the contract of an engine, and the engines."""

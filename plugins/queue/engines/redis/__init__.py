"""An engine that others keep: Redis, with a library of functions of its own."""

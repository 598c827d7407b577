"""Large messages in parts: cut at one end, put together at the other."""

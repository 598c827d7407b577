"""Links that are bad on purpose, and what carries them."""

"""The policy file: what is read, checked and offered."""

"""The policy file: its keys, how they are read and checked, and what they offer to clients."""

"""Session state, and what all sessions of a broker share."""

"""The sending side of one client."""

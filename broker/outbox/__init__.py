"""Messages that wait for one subscriber or are unacknowledged, and their ledger."""

"""Where a subscriber's RTT comes from."""

"""Where a message is stored and when a request is answered: pure, driven with any clock."""

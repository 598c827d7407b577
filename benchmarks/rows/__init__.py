"""The rows of ``penstock bench``, each of which measures every peer in one respect."""

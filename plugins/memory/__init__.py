"""Where the payloads of waiting messages live: by reference, spilled to files, or copied."""

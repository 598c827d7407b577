"""Shows operators the broker's clients, by an HTTP API and a command."""

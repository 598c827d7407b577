"""The sidecar: withholding in front of a broker, one connection to it for each client."""

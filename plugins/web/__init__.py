"""What the plugins' HTTP APIs have in common; no plugin itself."""

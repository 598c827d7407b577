"""The common parts of the plugins' HTTP APIs; this is no plugin itself."""

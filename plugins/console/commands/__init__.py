"""Commands of ``penstock`` that ask a running program by the API of the plugin `console`."""

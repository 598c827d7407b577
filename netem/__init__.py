"""Bad networks on one machine, to test everything on."""

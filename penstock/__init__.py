"""Penstock: an MQTT broker, its plugins, an edge proxy, networks to test on and a Spark bridge.

The folders of this package are links to those at the root of the repository.
"""

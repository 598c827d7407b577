"""The MQTT broker.

Importing this package imports nothing else, so that the models, the proxy and Spark's
executors can use its pure parts without loading a server.
"""

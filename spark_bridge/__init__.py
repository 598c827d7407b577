"""The queue as a Spark source, MQTT as a sink, and pipelines between them."""

"""The demo: this machine's telemetry through the broker, a slow link, the queue and Spark."""

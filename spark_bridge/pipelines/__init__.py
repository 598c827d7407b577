"""Pipelines: a YAML file of SQL views between a queue and sinks, run by Spark."""

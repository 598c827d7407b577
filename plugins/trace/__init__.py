"""Spans of OpenTelemetry for messages that carry a `traceparent`."""

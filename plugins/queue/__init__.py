"""Topics to pull queues: engines, controllers, HTTP API (papers 000, 001, 004)."""

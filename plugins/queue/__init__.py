"""Topics to pull queues: engines, enqueue and dequeue controllers, HTTP API (papers 000, 001, 004)."""

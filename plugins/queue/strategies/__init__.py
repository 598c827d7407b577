"""The controllers that deal messages to physical queues and answer requests; pure."""

"""The queue: topics are stored in pull queues, which back ends read (papers 000, 001 and 004)."""

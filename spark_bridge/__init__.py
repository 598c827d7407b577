"""The queue as a Spark source; imports nothing of ours but the queue's client."""

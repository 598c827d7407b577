"""The queue as a Spark source; of Penstock it imports only the queue's client."""

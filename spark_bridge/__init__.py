"""The queue as a Spark source; of Penstock it imports the queue's client and a few pure modules."""

"""The fabric of paper 001, chapter 3: failed and slow nodes, on the queue's own controllers."""

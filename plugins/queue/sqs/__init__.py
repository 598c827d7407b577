"""The Amazon SQS API of the queue, in the JSON protocol and the query protocol."""

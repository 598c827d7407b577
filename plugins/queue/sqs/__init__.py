"""The queue's Amazon SQS API: the JSON protocol and the query protocol over HTTP."""

"""What passes between the server of the queue's HTTP API and its client."""

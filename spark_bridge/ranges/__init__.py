"""How the messages of a range come to a task."""

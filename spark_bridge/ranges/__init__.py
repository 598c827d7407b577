"""The ways by which the messages of a range reach a task."""

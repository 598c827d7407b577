"""Test suites that others have written, against one broker and against a cluster."""

"""Subscriptions, shared subscriptions and retained messages: who gets a message."""

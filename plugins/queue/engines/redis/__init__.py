"""The engine that keeps its queues on Redis or Valkey servers, by a library of functions."""

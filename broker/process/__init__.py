"""The program's own process: signals, log, memory."""

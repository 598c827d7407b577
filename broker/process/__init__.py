"""The program's process: its command line, signals, log and memory."""

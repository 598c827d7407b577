"""Reports on clients and on the broker: the log, `$SYS`, and the samples of links."""

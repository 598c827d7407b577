"""The MQTT wire format, versions 3.1.1 and 5.0, without I/O."""

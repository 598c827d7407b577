"""The edge proxy: withholding in front of any MQTT broker."""

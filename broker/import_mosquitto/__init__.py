"""Translates a mosquitto.conf to a policy file."""

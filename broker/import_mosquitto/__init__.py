"""From a mosquitto.conf to a policy file."""

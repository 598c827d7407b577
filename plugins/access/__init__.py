"""Who may connect, and to which topics: mosquitto's files, certificates and SCRAM."""

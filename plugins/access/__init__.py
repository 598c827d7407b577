"""Decides who may connect and use which topics, by mosquitto's files, certificates and SCRAM."""

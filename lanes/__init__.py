"""Two lanes for Python's MQTT clients: change one import.

`penstock.lanes.paho` stands for `paho.mqtt.client`, and `penstock.lanes.aiomqtt` for `aiomqtt`.
Both need the client that they are named after, and nothing else of Penstock.
"""

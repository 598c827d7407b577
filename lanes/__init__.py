"""Two lanes for Python's MQTT clients: change one import.

`penstock.lanes.paho` replaces `paho.mqtt.client`, and `penstock.lanes.aiomqtt` replaces `aiomqtt`.
Each needs the client that it is named after, and nothing else of Penstock.
"""

"""A subscriber with paho that writes messages into files: lines of JSON, payloads in base64.

Arguments: the port, the folder of the files, and the seconds after which a file is complete. A file
is in the folder as soon as it is complete. Prints a line when the subscription stands.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.loads.queue_publisher import TOPICS


def main(argv: list[str]) -> None:
    """Write files until the process is ended."""
    port, folder, seconds = int(argv[0]), Path(argv[1]), float(argv[2])
    client = Client(CallbackAPIVersion.VERSION2, "bench-files", clean_session=False)
    client.max_inflight_messages_set(1_000)
    lines: list[str] = []
    lock = threading.Lock()

    def on_message(_client: Client, _data: Any, message: MQTTMessage) -> None:
        row = {"topic": message.topic, "payload": base64.b64encode(message.payload).decode()}
        with lock:
            lines.append(json.dumps(row))

    def on_connect(*_: Any) -> None:
        client.subscribe(f"{TOPICS}/#", qos=1)

    def on_subscribe(*_: Any) -> None:
        print(json.dumps({"ready": True}), flush=True)

    client.on_message = on_message
    client.on_subscribe = on_subscribe
    client.on_connect = on_connect
    client.connect("127.0.0.1", port)
    client.loop_start()
    number = 0
    while True:
        time.sleep(seconds)
        with lock:
            written, lines[:] = list(lines), []
        if written:
            hidden = folder / f".{number}.json"
            hidden.write_text("\n".join(written) + "\n")
            hidden.rename(folder / f"{number}.json")
            number += 1


if __name__ == "__main__":
    main(sys.argv[1:])

"""The peer `ceiling`: a relay that forwards packets almost unread, to show the load's limit.

It answers clients' requests itself. From a publisher's first PUBLISH it learns who has subscribed
to its topic, and copies every further chunk of bytes to them unread. Where clients acknowledge,
packets are parsed only as far as their identifiers: they are forwarded unchanged, and each
acknowledgement is answered at once. Where clients have several topic filters, each packet's topic
is looked up. All readable connections are read first, then each client is written to once.

A broker that is as fast as this relay may be faster: the load is at its limit.
"""

from __future__ import annotations

import select
import socket
import ssl
import sys
from typing import Any, Final

from benchmarks.loads import wire

BUFFER_BYTES: Final = 1 << 18
HEAD_BYTES: Final = 256
"""An upper bound for the bytes before the payload of a PUBLISH in any of the loads."""

BACKLOG: Final = 1024
CONNECT: Final = 0x10
SUBSCRIBE: Final = 0x82
UNSUBSCRIBE: Final = 0xA2
VERSION_AT: Final = 8
"""The offset of the protocol level in a CONNECT of fewer than 128 bytes."""

ANSWER_BYTES: Final = 4
PUBACK_HEAD: Final = bytes([wire.PUBACK, 2])
PUBREC_HEAD: Final = bytes([wire.PUBREC, 2])
PUBREL_HEAD: Final = bytes([wire.PUBREL, 2])
PUBCOMP_HEAD: Final = bytes([wire.PUBCOMP, 2])
ACKNOWLEDGEMENTS: Final = frozenset({wire.PUBACK, wire.PUBREC, wire.PUBCOMP})


class Client:
    """A connection and the state of its client.

    Attributes:
        rest: the bytes of an incomplete packet.
        out: the bytes to send at the end of this turn.
        targets: the clients that receive all its messages; None while they are unknown.
        packet_bytes: the length of each PUBLISH where it publishes at QoS 1 or 2, else 0.
        id_at: the offset of the Packet Identifier in a PUBLISH.
    """

    __slots__ = ("id_at", "out", "packet_bytes", "rest", "sock", "targets", "version")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.version = 4
        self.rest = b""
        self.out: list[bytes] = []
        self.targets: list[Client] | None = None
        self.packet_bytes = self.id_at = 0

    def read(self) -> bytes:
        """Return what has come; b"" at the end of the connection."""
        try:
            data = self.sock.recv(BUFFER_BYTES)
            if isinstance(self.sock, ssl.SSLSocket):
                while self.sock.pending():  # is not told as readable again
                    data += self.sock.recv(BUFFER_BYTES)
        except OSError:
            return b""
        return data


class Filters:
    """The topic filters and their clients, as a tree of topic levels."""

    def __init__(self) -> None:
        self._unsorted: list[tuple[str, Client]] = []
        self._root: dict[str, Any] = {}

    def add(self, topic_filter: str, client: Client) -> None:
        """Note a subscription."""
        self._unsorted.append((topic_filter, client))

    def matching(self, topic: str) -> list[Client]:
        """Return the subscribers of a topic."""
        for topic_filter, client in self._unsorted:
            node = self._root
            for level in topic_filter.split("/"):
                node = node.setdefault(level, {})
            node.setdefault("", []).append(client)  # the levels of the loads' topics have names
        self._unsorted.clear()
        found: list[Client] = []
        nodes = [self._root]
        for level in topic.split("/"):
            for node in nodes:
                found += node.get("#", {}).get("", [])
            nodes = [node[kind] for node in nodes for kind in (level, "+") if kind in node]
        for node in nodes:
            found += node.get("", []) + node.get("#", {}).get("", [])
        return found


def acknowledge_publisher(data: bytes, size: int, id_at: int) -> tuple[bytes, bytes, int]:
    """Return the answers to a publisher's bytes.

    Args:
        data: the received bytes: PUBLISH of equal length and PUBREL, the last one perhaps
            incomplete.
        size: the length of a PUBLISH.
        id_at: the offset of its Packet Identifier.

    Returns:
        The answers, the PUBLISH packets, and the number of bytes in complete packets.
    """
    answers, forwarded = [], []
    at = 0
    while at < len(data):
        is_release = data[at] == wire.PUBREL
        stop = at + (ANSWER_BYTES if is_release else size)
        if stop > len(data):
            break
        if is_release:
            answers.append(PUBCOMP_HEAD + data[at + 2 : stop])
        else:
            head = PUBACK_HEAD if data[at] == wire.PUBLISH_QOS1 else PUBREC_HEAD
            answers.append(head + data[at + id_at : at + id_at + 2])
            forwarded.append(data[at:stop])
        at = stop
    return b"".join(answers), b"".join(forwarded), at


def acknowledge_subscriber(data: bytes) -> bytes:
    """Return the PUBRELs for the PUBRECs among whole acknowledgements."""
    return b"".join(
        PUBREL_HEAD + data[at + 2 : at + ANSWER_BYTES]
        for at in range(0, len(data), ANSWER_BYTES)
        if data[at] == wire.PUBREC
    )


def read_subscribe(packet: bytes, version: int) -> tuple[list[str], bytes]:
    """Return the topic filters of a SUBSCRIBE, and the SUBACK that grants all."""
    at = wire.body_at(packet)
    packet_id = packet[at : at + 2]
    at += 3 if version == 5 else 2
    filters, granted = [], bytearray()
    while at < len(packet):
        stop = at + 2 + int.from_bytes(packet[at : at + 2], "big")
        filters.append(packet[at + 2 : stop].decode())
        granted.append(packet[stop])
        at = stop + 1
    body = packet_id + (b"\0" if version == 5 else b"") + granted
    return filters, wire.frame(wire.SUBACK, body)


class Relay:
    """The relay, which serves all clients on one thread until it is ended."""

    def __init__(self, server: socket.socket, context: ssl.SSLContext | None) -> None:
        self._server = server
        self._context = context
        self._clients: dict[int, Client] = {}
        self._filters = Filters()
        self._by_topic: dict[bytes, list[Client]] = {}
        self._waiting: list[Client] = []
        self._is_sorted = False  # whether messages of one publisher go to different subscribers
        self._poller = select.epoll()
        self._poller.register(server, select.EPOLLIN)

    def run(self) -> None:
        """Serve."""
        while True:
            for descriptor, _ in self._poller.poll():
                client = self._clients.get(descriptor)
                if client is None:
                    self._accept()
                elif data := client.read():
                    self._take(client, data)
                else:
                    self._leave(client)
            waiting, self._waiting = self._waiting, []
            for client in waiting:
                data, client.out = b"".join(client.out), []
                try:
                    client.sock.sendall(data)
                except OSError:  # it has left, which its next event tells
                    continue

    def _accept(self) -> None:
        sock, _ = self._server.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            try:
                sock = self._context.wrap_socket(sock, server_side=True)
            except OSError:  # a client that only checked whether the port is open
                return
        self._clients[sock.fileno()] = Client(sock)
        self._poller.register(sock, select.EPOLLIN)

    def _leave(self, client: Client) -> None:
        if self._clients.pop(client.sock.fileno(), None) is not None:
            self._poller.unregister(client.sock)
            client.sock.close()

    def _put(self, client: Client, data: bytes) -> None:
        if not client.out:
            self._waiting.append(client)
        client.out.append(data)

    def _take(self, client: Client, data: bytes) -> None:
        """Do what a client's chunk of bytes asks for."""
        targets = client.targets
        if targets is not None and not client.packet_bytes:
            for target in targets:
                self._put(target, data)
            return
        if client.rest:
            data = client.rest + data
        if targets is None:
            whole = self._answer(client, data)
        else:
            answers, forwarded, whole = acknowledge_publisher(
                data, client.packet_bytes, client.id_at
            )
            self._put(client, answers)
            for target in targets:
                self._put(target, forwarded)
        client.rest = data[whole:]

    def _answer(self, client: Client, data: bytes) -> int:
        """Answer a client of which nothing can be copied unread; return how much was taken."""
        at = 0
        while len(data) - at >= 2:
            kind = data[at]
            if kind in ACKNOWLEDGEMENTS:  # a subscriber sends nothing else
                whole = at + (len(data) - at) // ANSWER_BYTES * ANSWER_BYTES
                if releases := acknowledge_subscriber(data[at:whole]):
                    self._put(client, releases)
                return whole
            stop = at + wire.size_of(data[at : at + 5])
            is_publish = kind & 0xF0 == wire.PUBLISH
            if len(data) < (min(stop, at + HEAD_BYTES) if is_publish else stop):
                break
            if is_publish:
                if not self._is_sorted:
                    self._learn(client, data[at : at + HEAD_BYTES])
                    self._take(client, data[at:])
                    return len(data) - len(client.rest)
                if len(data) < stop:
                    break
                self._pass_on(data[at:stop])
            elif kind == wire.DISCONNECT[0]:
                self._leave(client)
                return len(data)
            else:
                self._put(client, self._welcome(client, data[at:stop]))
            at = stop
        return at

    def _learn(self, client: Client, head: bytes) -> None:
        """Know from a client's first PUBLISH what to do with all of them."""
        form = wire.read_publish(head)
        client.rest = b""
        client.targets = self._filters.matching(form.topic)
        if form.first_byte & 0x06:
            client.packet_bytes = wire.size_of(head)
            client.id_at = form.packet_id_at

    def _pass_on(self, packet: bytes) -> None:
        """Look up who gets one packet."""
        at = wire.body_at(packet)
        topic = packet[at + 2 : at + 2 + int.from_bytes(packet[at : at + 2], "big")]
        targets = self._by_topic.get(topic)
        if targets is None:
            targets = self._by_topic[topic] = self._filters.matching(topic.decode())
        for target in targets:
            self._put(target, packet)

    def _welcome(self, client: Client, packet: bytes) -> bytes:
        """Return the answer to a CONNECT, SUBSCRIBE or UNSUBSCRIBE."""
        if packet[0] == CONNECT:
            client.version = packet[VERSION_AT]
            return wire.CONNACK_ACCEPTED if client.version == 4 else b"\x20\x03\x00\x00\x00"
        if packet[0] == SUBSCRIBE:
            filters, answer = read_subscribe(packet, client.version)
            for topic_filter in filters:
                self._filters.add(topic_filter, client)
            self._is_sorted |= len(filters) > 1
            return answer
        if packet[0] == UNSUBSCRIBE:  # the load publishes no more to an unsubscribed topic
            at = wire.body_at(packet)
            return wire.acknowledgement(wire.UNSUBACK, int.from_bytes(packet[at : at + 2], "big"))
        raise wire.WireError(f"read {packet[:16].hex(' ')}; no load sends that")


def main() -> None:
    """Serve on a port, with TLS where a certificate and its key are named too."""
    context = None
    if len(sys.argv) > 2:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(sys.argv[2], sys.argv[3])
    with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=BACKLOG) as server:
        Relay(server, context).run()


if __name__ == "__main__":
    main()

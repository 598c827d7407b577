"""A real TCP connection over the loopback interface, seen from the broker's end."""

from __future__ import annotations

import socket

from penstock.broker.network.tcp_info import TcpInfo, read_tcp_info


class Loopback:
    """Two connected sockets.

    Attributes:
        broker: the end whose kernel state is read.
        subscriber: the other end.
    """

    def __init__(self, broker: socket.socket, subscriber: socket.socket) -> None:
        self.broker = broker
        self.subscriber = subscriber

    @property
    def fileno(self) -> int:
        """File descriptor of the broker's end."""
        return self.broker.fileno()

    def info(self) -> TcpInfo:
        """Return what the kernel says of the broker's end."""
        info = read_tcp_info(self.fileno)
        assert info is not None
        return info

    def exchange(self, n_bytes: int = 1) -> None:
        """Send some bytes and wait until the subscriber's kernel has acknowledged them."""
        self.broker.sendall(bytes(n_bytes))
        self.subscriber.recv(n_bytes, socket.MSG_WAITALL)
        while self.info().unacked:
            pass

    def fill(self) -> int:
        """Send until the kernel takes no more; return how many bytes it took."""
        self.broker.setblocking(False)
        sent = 0
        try:
            while True:
                sent += self.broker.send(bytes(65_536))
        except BlockingIOError:
            return sent

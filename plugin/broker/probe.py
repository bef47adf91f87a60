"""Asks a Kafka broker whether it is up, in Kafka's own protocol and without a client library."""

from __future__ import annotations

import socket
import struct

_METADATA = 3
_VERSION = 1
_CORRELATION = 4711
_CLIENT = b"lockstep"
_ALIVE = struct.Struct(">iii")


def answers(host: str, port: int, timeout: float = 2.0) -> bool:
    """Whether the broker at ``host:port`` takes requests and counts itself among the live brokers of its cluster.

    An open port is not enough: a broker that has just started accepts connections before topics can be created on it.
    """
    body = struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION, len(_CLIENT)) + _CLIENT + struct.pack(">i", 0)
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as reply:
                answer = reply.read(_ALIVE.size)
    except OSError:
        return False
    if len(answer) < _ALIVE.size:
        return False
    _, correlation, brokers = _ALIVE.unpack(answer)
    return bool(correlation == _CORRELATION and brokers > 0)

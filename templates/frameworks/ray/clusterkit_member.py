"""A node that joins the Ray of the first one, and leaves with it; what ray_launch.py runs there."""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import clusterkit_peers
import clusterkit_ray

BEAT_S = 2
HEAD_SILENCE_S = 20
"""Later than clusterkit itself misses the first node, so that it is blamed, not who misses it."""
OTHERS_TELL_S = 2
"""How long who has lost the first node waits, for that one's own failure to come first."""


def say(words):
    print(f"clusterkit: {words}", flush=True)


def fail(words):
    sys.exit(f"clusterkit: error: {words}")


def send(line, message):
    with suppress(OSError):  # whoever reads from it notices as well
        line.send(message)


class Member:
    """A node that joins the cluster of the first one, and leaves with it."""

    def __init__(self, options):
        self.options = options
        self.ray: Any = None
        self.received: dict[str, Any] = {}
        self.line: Any = None

    def run(self):
        """Do what the head says until it says that this is the end; return the exit code."""
        name, joined = os.environ["CK_NODE_NAME"], False
        head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"]) + 1
        member = clusterkit_peers.member_of_job("ray")
        try:
            self.line = clusterkit_peers.connect_within(self.options.start_timeout, head, member)
        except OSError as error:
            fail(f"{name}: {error}")
        threading.Thread(target=self.listen, daemon=True).start()
        beat_at = 0.0
        while "end" not in self.received:
            if "gone" in self.received:
                say(f"{name} no longer hears the first node")
                time.sleep(OTHERS_TELL_S)
                return 1
            if "join" in self.received and self.ray is None:
                self.ray = clusterkit_ray.Ray(self.options.ray)
            if self.ray and self.ray.ended():
                say(f"Ray has ended on {name}:\n{self.ray.last_words()}")
                return 1
            if self.ray and self.ray.up.is_set() and not joined:
                joined = True
                send(self.line, {"joined": True})
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT_S
                send(self.line, {})
            time.sleep(0.1)
        return self.received["end"]

    def listen(self):
        """Note what the head says, until it has gone."""
        with suppress(OSError):
            for message in self.line.messages(HEAD_SILENCE_S):
                if "end" in message:
                    self.received["end"] = clusterkit_peers.whole(message, "end", 0, 1)
                self.received |= dict.fromkeys(message.keys() & {"join"}, True)
        self.received["gone"] = True

    def end(self):
        """End the Ray of this node; the head waits for who is to blame, and not for others."""
        if self.ray and self.received.get("end"):
            self.ray.end()
        if self.line:
            self.line.end()
        if self.ray:
            self.ray.end()

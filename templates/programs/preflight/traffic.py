"""What two nodes do in their slot: small messages to and fro, then bulk, one way and the other.

The receiver decides when it has seen enough, and is the one that counts. Every wait has a deadline
within the slot. For Python >= 3.6, no file, no clusterkit; see links.py.
"""

import socket
import struct
import time

PINGS = 40
CHUNK = 1 << 18
PARTS = 8


def now():
    return time.monotonic()


def wait_until(moment):
    time.sleep(max(0.0, moment - now()))


def ping(sock, until):
    """Return the median round trip of a byte, in microseconds; the first one only synchronises."""
    times = []  # type: list[float]
    for _ in range(PINGS + 1):
        if times and now() > until:
            break
        began = now()
        sock.sendall(b".")
        if not sock.recv(1):
            break
        times.append(now() - began)
    sock.shutdown(socket.SHUT_WR)
    kept = sorted(times[1:] or times)
    return round(kept[len(kept) // 2] * 1e6) if kept else "-"


def echo(sock):
    while True:
        byte = sock.recv(1)
        if not byte:
            return
        sock.sendall(byte)


def blast(sock, until):
    """Send until the receiver has seen enough and resets the connection."""
    data = memoryview(bytes(CHUNK))
    sock.settimeout(max(0.01, until - now()))
    try:
        while now() < until:
            sock.send(data)
    except OSError:
        return


def drain(sock, window, until):
    """Return bytes a second over `window` seconds, as the second best of its parts.

    The first part has slow start and bursts, and is left out. The best may hold what had piled up
    while this process waited for a CPU; the worst are those in which it waited.
    """
    buffer = bytearray(CHUNK)
    sock.settimeout(max(0.01, until - now()))
    parts, total, began = [0] * PARTS, 0, None
    try:
        while began is None or now() - began < window:
            got = sock.recv_into(buffer)
            if not got:
                break
            began = began or now()
            part = int((now() - began) / window * PARTS)
            total += got
            if part < PARTS:
                parts[part] += got
    except OSError:
        pass  # the figure below says how far it came
    finally:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    best = sorted(parts[1:])[-2] * PARTS
    # A link so slow that less than two parts had anything: the whole of the window has to do.
    return round((best or total) / window) if total else "-"


def call(node, peer, tag, begin, slot):
    status, pings, _ = node.dial(peer, tag + "0", begin + 0.9 * slot)
    if pings is None:
        return (status,)
    pings.settimeout(max(0.01, begin + 0.9 * slot - now()))
    _, out, _ = node.dial(peer, tag + "1", begin + 0.9 * slot)
    _, back, _ = node.dial(peer, tag + "2", begin + 0.9 * slot)
    if out is None or back is None:
        return ("closed",)
    latency = ping(pings, begin + 0.25 * slot)
    blast(out, begin + 0.62 * slot)
    return "ok", latency, drain(back, 0.3 * slot, begin + 0.97 * slot)


def answer(node, peer, tag, begin, slot):
    pings = node.take(tag + "0", peer, begin + 0.9 * slot)
    if pings is None:
        return ("uncalled",)
    pings.settimeout(max(0.01, begin + 0.9 * slot - now()))
    echo(pings)
    into = node.take(tag + "1", peer, begin + 0.5 * slot)
    back = node.take(tag + "2", peer, begin + 0.5 * slot)
    if into is None or back is None:
        return ("closed",)
    rate = drain(into, 0.3 * slot, begin + 0.62 * slot)
    blast(back, begin + 0.97 * slot)
    return "ok", "-", rate

"""Run an all-reduce in each pair of nodes that this node belongs to, and say how it went.

Runs on every node at about the same time, with nothing but Python >= 3.6 of its own; the ranks,
which are processes of allreduce_rank.py, need torch. A rank that hangs is killed, so a bad pair
costs its round and not the others. What it prints is read by
clusterkit/preflight/probes/net/allreduce.py.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time

from netnode import find_self, peers_of, read_rounds

NOT_APPLICABLE = 77


def say(*words):
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


def start(source, words):
    return subprocess.Popen(
        [sys.executable, "-c", source] + [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        start_new_session=True,
    )


def finish(ranks, deadline):
    """Return (exit code, stdout, stderr) of each rank; the code is None where it was killed."""
    ended = []
    for rank in ranks:
        try:
            out, err = rank.communicate(timeout=max(0.1, deadline - time.monotonic()))
            ended.append((rank.returncode, out, err))
        except subprocess.TimeoutExpired:
            kill(ranks)
            out, err = rank.communicate()
            ended.append((None, out, err))
    return ended


def kill(ranks):
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, signal.SIGKILL)


def reason(text):
    """Return the line of an error text that says most, without blanks at its ends."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "rror" in line.split(":")[0]]
    return (named or lines or ["no reason given"])[-1][:200]


def judge(ended):
    """Return what to say of one round, from how the ranks of this node ended."""
    out_of_time = (None, 0 - signal.SIGALRM)
    failed = [err for code, _, err in ended if code and code not in out_of_time]
    if failed:
        return ["failed", reason(failed[0])]
    if any(code in out_of_time for code, _, _ in ended):
        return ["hung"]
    return ["ok", ended[0][1].strip()]


def main(source, hosts, port, backend, ranks, rounds_text, *limits):
    if importlib.util.find_spec("torch") is None:
        say("torch is not installed")
        sys.exit(NOT_APPLICABLE)
    hosts, per_node = hosts.split(","), int(ranks)
    me = find_self(hosts)
    rounds = read_rounds(rounds_text, len(hosts), 1)
    began, (each_s, run_s) = time.monotonic(), map(float, limits)
    say("ck-allreduce", 1, hosts[me], len(hosts), backend, per_node)
    for number, peer in enumerate(peers_of(me, rounds)):
        if peer is None:
            continue
        # Until when ranks may meet counts from the start: a partner that a bad pair held up is
        # waited for, and so is one that imports torch for longer.
        left = began + (number + 1) * each_s - time.monotonic()
        first = 0 if me < peer else per_node
        where = [hosts[min(me, peer)], int(port) + number % 4]
        running = [
            start(source, [backend, *where, first + k, 2 * per_node, k, left, run_s])
            for k in range(per_node)
        ]
        ended = finish(running, time.monotonic() + left + run_s + 2)
        say("pair", number, hosts[peer], *judge(ended))
    say("end")


main(*sys.argv[1:])

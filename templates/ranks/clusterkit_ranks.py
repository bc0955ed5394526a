"""Run the ranks of one node, and end them together: for the launchers of frameworks without one.

The exit code is that of the first local rank that failed, as a shell gives it; which that was is
said in the file CK_FAILURE, where that is set. A rank that knows it has only lost another one may
leave a note, `lost-another-RANK` in CK_TMP, with how far the output had come: whoever is to blame
is given time to come first.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

GRACE_S = 10
OTHERS_TELL_S = 2
"""How long a rank that has lost another one is not blamed, for that one's node to come first."""


def run(command, environments, over=lambda _: None):
    """Start `command` once for each rank, in its environment; return the exit code of the node.

    `over` is asked again and again, of the ranks that still run, how the node is to end now.
    """
    ranks = {
        rank: subprocess.Popen(command, env=environment)
        for rank, environment in environments.items()
    }
    signal.signal(signal.SIGTERM, lambda *_: end(ranks.values()))
    return wait_for(ranks, over)


def wait_for(ranks, over):
    running = dict(ranks)
    while running:
        for rank, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[rank]
            if code != 0:
                code = code if code > 0 else 128 - code
                if lost_another(rank):
                    end(running.values())
                    time.sleep(OTHERS_TELL_S)
                if os.environ.get("CK_FAILURE"):
                    tell(rank, list(ranks).index(rank), code)
                end(running.values())
                return code
        code = over(set(running))
        if code is not None:
            end(running.values())
            if code:
                time.sleep(OTHERS_TELL_S)
            return code
        time.sleep(0.1)
    return 0


def lost_another(rank):
    return Path(os.environ["CK_TMP"], f"lost-another-{rank}").exists()


def output_until_lost(rank):
    """Return how far the output had come: what others say who fail next is not the rank's own."""
    output = os.fstat(2)
    notes = Path(os.environ["CK_TMP"]).glob("lost-another-*")
    others = (note for note in notes if note.name != f"lost-another-{rank}")
    sizes = [int(text) for note in others if (text := note.read_text())]
    return {"inode": output.st_ino, "size": min([output.st_size, *sizes])}


def tell(rank, local_rank, code):
    document = {
        "node": os.environ["CK_NODE_NAME"],
        "rank": rank,
        "local_rank": local_rank,
        "exit_code": code,
        "log": output_until_lost(rank),
    }
    path = os.environ["CK_FAILURE"]
    draft = Path(f"{path}.{rank}")
    with suppress(OSError):  # unlike a rename, a link replaces nothing: the first rank counts
        draft.write_text(json.dumps(document), encoding="utf-8")
        try:
            Path(path).hardlink_to(draft)
        finally:
            draft.unlink()


def end(ranks):
    for rank in ranks:
        rank.terminate()
    deadline = time.monotonic() + GRACE_S
    for rank in ranks:
        try:
            rank.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()

"""Write, read and create files as checkpoints and data sets do, on every node of a job.

Started by torchrun on every node, with its wishes as JSON in the one argument. Rank 0 writes
storage.json into the folder of results; clusterkit/observe/bench/storage.py reads it.

A file loses its name as soon as it is open: whatever kills a rank leaves none behind.
"""

import ctypes
import json
import mmap
import os
import sys
import tempfile
import time
from pathlib import Path

from clusterkit_meeting import LATE_S, Meeting, node

BLOCK = 8 << 20
PART_S = 60.0
"""After this long a part ends, whatever it has written or read by then."""
SMALL, SMALL_MOST, SMALL_S = 16 << 10, 2000, 5.0
"""Bytes of a small file, and how many of them, or for how long."""
LEAST, USUAL = 16 << 20, 1 << 30
"""Bytes that a node has to write at least, and writes unless told how many."""
SHARE = 0.25
"""Of the room there is, what all nodes take unless told how much: they may share it."""
RESERVE = 0.05
"""Of a file system, what stays free for others in any case."""
IN_MEMORY = ("tmpfs", "ramfs")
CACHED = 0.01
"""The share of a file in the cache above which reading it measures the memory."""


def file_system(path):
    """Return the type of the file system that a folder is in."""
    found = (0, "")
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        words, _, more = line.partition(" - ")
        at = words.split()[4].encode().decode("unicode_escape")
        if path == at or path.startswith(at.rstrip("/") + "/"):
            found = max(found, (len(at), more.split()[0]))
    return found[1]


def unnamed(folder):
    """Return a new file that is gone once it is closed."""
    handle, name = tempfile.mkstemp(prefix=".clusterkit-storage-", dir=folder)
    Path(name).unlink()
    return handle


def myself(asked):
    me = {"node": node(), "slot": int(os.environ.get("LOCAL_RANK", "0"))}
    folder = os.path.realpath(asked or os.curdir)
    me["path"] = folder
    try:
        disk = os.statvfs(folder)
        me.update(free=disk.f_bavail * disk.f_frsize, total=disk.f_blocks * disk.f_frsize)
        me["file_system"] = file_system(folder)
        os.close(unnamed(folder))
    except OSError as error:
        me["error"] = f"cannot write to it: {error.strerror}"
    return me


def decide(asked, known):
    """Return how much each node writes, and the ranks for which that is too much."""
    there = [one for one in known if one and "error" not in one]
    nodes = len({one["node"] for one in there})
    errors, rooms = {}, []
    for rank, one in enumerate(known):
        if not one or "error" in one:
            continue
        room = one["free"] - RESERVE * one["total"]
        if room < nodes * (asked or LEAST / SHARE):
            free, total = (f"{one[key] / 1e9:.3g} GB" for key in ("free", "total"))
            needs = f", and {nodes * asked / 1e9:.3g} GB are to be written" if asked else ""
            kept = f", {RESERVE:.0%} stay free"
            errors[rank] = f"it is too full: {free} of {total} are free{needs}{kept}"
        else:
            rooms.append(room)
    size = asked or int(min([USUAL, *(SHARE * room / nodes for room in rooms)]))
    return {"size": size, "errors": errors, "ranks": len(there) - len(errors)}


class Blocks:
    """Bytes that no file system makes smaller, and that do not repeat soon."""

    def __init__(self):
        self.pool = memoryview(os.urandom(2 * BLOCK))
        self.room = mmap.mmap(-1, BLOCK)  # begins at a page, as O_DIRECT wants it

    def write(self, handle, size):
        """Write so many bytes unless time ends, and make them safe; return what came of it."""
        began, written, turn = time.perf_counter(), 0, 0
        while written < size and time.perf_counter() - began < PART_S:
            first = turn * 4099 % BLOCK
            turn += 1
            written += os.write(handle, self.pool[first : first + min(BLOCK, size - written)])
        accepted = time.perf_counter()
        os.fsync(handle)
        ended = time.perf_counter()
        return {"bytes": written, "seconds": ended - began, "fsync_s": ended - accepted}

    def read(self, handle, size, in_memory):
        """Read what was written, from where it is kept if that can be."""
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        share, source, direct = resident(handle, size), "disk", None
        if in_memory:
            source = "memory"
        elif share is None:
            source = "unknown"
        elif share > CACHED:
            direct = opened_directly(handle)
            source = "memory" if direct is None else "direct"
        using = handle if direct is None else direct
        try:
            os.lseek(using, 0, os.SEEK_SET)
            began, got = time.perf_counter(), 0
            while got < size and time.perf_counter() - began < PART_S:
                more = os.readv(using, [self.room])
                if not more:
                    break
                got += more
            return {"bytes": got, "seconds": time.perf_counter() - began, "from": source}
        finally:
            if direct is not None:
                os.close(direct)


def resident(handle, size):
    """Return which share of the beginning of a file is in memory; None where nobody says."""
    length = min(size, 1 << 30)
    try:
        view = mmap.mmap(handle, length)
    except (OSError, ValueError):
        return None
    start = ctypes.c_char.from_buffer(view)
    pages = -(-length // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    failed = ctypes.CDLL(None).mincore(
        ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(length), found
    )
    del start
    view.close()
    return None if failed else sum(one & 1 for one in found) / pages


def opened_directly(handle):
    try:
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None


def small_files(folder):
    """Create files until there are enough, each safe on the disk before the next."""
    data, files, began = os.urandom(SMALL), 0, time.perf_counter()
    while files < SMALL_MOST and time.perf_counter() - began < SMALL_S:
        handle = unnamed(folder)
        try:
            os.write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        files += 1
    return {"files": files, "bytes": SMALL, "seconds": time.perf_counter() - began}


TURNS = 5
"""To write and to read in one process and in all, and to create."""


class Turns:
    """Have all ranks begin each part together, without those that are stuck in the last one."""

    def __init__(self, meeting, ranks):
        self.meeting, self.ranks, self.turn = meeting, ranks, 0
        self.all_came = True

    def next(self):
        """Wait for the others; once, and not for long, as they may be stuck.

        Raises:
            OSError: the others have gone on without this rank.
        """
        self.turn += 1
        store, key = self.meeting.store, f"turn/{self.turn}"
        if store.add(f"{key}/over", 0):
            self.turn = TURNS  # nobody waits for it any more
            raise OSError(f"stuck for more than {2 * PART_S:.0f} s, the others went on without it")
        there, ends = store.add(key, 1), time.monotonic() + 2 * PART_S
        while there < self.ranks and time.monotonic() < ends:
            time.sleep(0.05)
            there = store.add(key, 0)
        if there < self.ranks:
            late = f"{self.ranks - there} of {self.ranks} ranks"
            if store.add(f"{key}/over", 1) == 1:  # the first to tell
                print(f"part {self.turn} of {TURNS}: {late} are left out", flush=True)
            self.ranks, self.all_came = there, False

    def leave(self):
        """Let nobody wait for this rank from now on."""
        for turn in range(self.turn + 1, TURNS + 1):
            self.meeting.store.add(f"turn/{turn}", 1)


def measure(me, size, turns):
    """Put into `me` what this rank measures: beside one process of each other node, then all."""
    ranks, blocks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), Blocks()
    for part, bytes_ in (("one", size), ("all", size // ranks)):
        works = ranks > 1 if part == "all" else me["slot"] == 0
        handle = unnamed(me["path"]) if works else None
        try:
            turns.next()
            if handle is not None:
                me[part] = {"write": blocks.write(handle, bytes_)}
            turns.next()
            if handle is not None:
                written = me[part]["write"]["bytes"]
                in_memory = me["file_system"] in IN_MEMORY
                me[part]["read"] = blocks.read(handle, written, in_memory)
        finally:
            if handle is not None:
                os.close(handle)
    turns.next()
    if me["slot"] == 0:
        me["small"] = small_files(me["path"])


def main(text):
    asked = json.loads(text)
    meeting = Meeting("storage")
    me = myself(asked["path"])
    agreed = meeting.agree(me, lambda known: decide(asked["size"], known))
    error = agreed["errors"].get(str(meeting.rank))
    if error is not None:
        me["error"] = error
    all_came = True
    if "error" not in me:
        me["size"] = agreed["size"]
        turns = Turns(meeting, agreed["ranks"])
        try:
            measure(me, agreed["size"], turns)
        except OSError as failed:
            me["error"] = f"{failed.strerror or failed}"[:200]
            turns.leave()
        all_came = turns.all_came
    # Whoever was waited for in a part had its time.
    meeting.end(me, 4 * PART_S + LATE_S if all_came else LATE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])

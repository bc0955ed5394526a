"""The other end of a conversation with a node: node.py TOKEN, requests on stdin, answers on stdout.

A request is one line of JSON with the name of an operation, and what belongs to it; so is an
answer, with bytes behind it where it says so. Needs Python 3.6 and nothing else, because it runs
where nothing is installed yet. While an operation is silent, an empty line every few seconds tells
that it lives.

Files are compared by their contents, so that what was broken off is only continued, and get their
names when they are whole. Names of files come and go as os.fsdecode has them.
"""

import fcntl
import grp
import hashlib
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

PIECE = 1 << 18
SIGN_OF_LIFE_S = 5
ROOM = 16 << 20
PART = ".ck-part"
PRIVATE = 0o700
source, target = sys.stdin.buffer, sys.stdout.buffer
held = []  # type: list[int]
# Code that will run, logs and results are nobody else's, whatever the login says.
login_umask = os.umask(0o077)


class Refused(Exception):
    pass


def answer(document, data=b""):
    target.write(json.dumps(document).encode() + b"\n" + data)
    target.flush()


@contextmanager
def alive():
    done = threading.Event()

    def tell():
        while not done.wait(SIGN_OF_LIFE_S):
            target.write(b"\n")
            target.flush()

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def look(request):
    """Say what Python and how much room there is, and what the file `read` holds.

    With `lock`, the place stays this conversation's own, and nobody else gets the right to write
    what is made in it from now on; `trusted` are folders beside it from which code will be run.
    """
    place = os.path.expanduser(request["place"])
    if request.get("lock"):
        os.umask(login_umask & 0o077 | 0o022)
        with alive():
            os.makedirs(os.path.dirname(place), exist_ok=True)
            for path in (place, *map(os.path.expanduser, request.get("trusted", []))):
                require_own(path)
            if os.access(os.path.dirname(place), os.W_OK):  # else nobody here can make anything
                lock(place)
    about = {"python": list(sys.version_info[:3]), "place": place, "text": None}
    about["full"] = os.path.isdir(place) and bool(os.listdir(place))
    needed = {path: os.path.expanduser(path) for path in request.get("need", [])}
    about["missing"] = [path for path in needed if not os.path.exists(needed[path])]
    while not os.path.isdir(place):
        place = os.path.dirname(place) or "/"
    room = os.statvfs(place)
    about["free"] = room.f_bavail * room.f_frsize
    if request.get("read"):
        with suppress(OSError), open(os.path.expanduser(request["read"])) as stream:
            about["text"] = stream.read()
    answer(about)


def receive(request):
    """Make `folder` hold these files, and with `only` no others; then copy it to `snapshot`."""
    folder = os.path.expanduser(request["folder"])
    entries = [dict(zip(request["fields"], entry)) for entry in request["entries"]]
    with alive():
        if request.get("folder_mode") == PRIVATE:
            make_private(folder)
        os.makedirs(folder, mode=0o755, exist_ok=True)
        lock(folder)
        if request["only"]:
            remove_others(folder, {entry["path"] for entry in entries})
        wanted = [i for i, entry in enumerate(entries) if not is_there(folder, entry)]
        require_room(folder, sum(entries[i]["size"] for i in wanted))
    answer({"wanted": wanted})
    for index in wanted:
        entry = entries[index]
        path = os.path.join(folder, entry["path"])
        make_way(folder, entry["path"])
        if entry["link"] is not None:
            os.symlink(entry["link"], path)
        else:
            take_file(path, entry)
    with alive():
        if request.get("snapshot"):
            size = sum(entry["size"] for entry in entries)
            copy_once(folder, os.path.expanduser(request["snapshot"]), size)
        for name in request.get("folders", []):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
    answer({"folder": folder})


def lock(folder):
    """Keep other conversations from changing the folder until this one ends."""
    path = folder.rstrip("/") + ".lock"
    held.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    fcntl.flock(held[-1], fcntl.LOCK_EX)


def require_own(path):
    """Refuse what is somebody else's, or can be written by others: programs in it will be run.

    A group that is the user's alone does no harm (clusterkit/core/ownership.py is this rule).
    """
    above = os.stat(os.path.dirname(path) or "/").st_mode
    if above & stat.S_IWOTH and not above & stat.S_ISVTX:
        raise Refused(f"everybody can replace {path}: nothing in it will be run")
    for look_at in (os.lstat, os.stat):  # of a link, both it and its target
        try:
            about = look_at(path)
        except FileNotFoundError:
            return
        if about.st_uid not in {0, os.geteuid()}:
            raise Refused(f"{path} belongs to user {about.st_uid}: nothing in it will be run")
        others = about.st_mode & stat.S_IWOTH
        others = others or (about.st_mode & stat.S_IWGRP and not is_private(about))
        if others and not stat.S_ISLNK(about.st_mode):
            raise Refused(f"others can write {path}: nothing in it will be run (chmod go-w {path})")


def keeps_names(path):
    """Tell whether a folder of root's lets nobody rename what others have in it (sticky)."""
    about = os.lstat(path)
    return stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX and about.st_uid == 0


def is_private(about):
    try:
        group, owner = grp.getgrgid(about.st_gid), pwd.getpwuid(about.st_uid)
    except KeyError:
        return False
    alone = set(group.gr_mem) <= {owner.pw_name}
    return alone and group.gr_name == owner.pw_name and owner.pw_gid == group.gr_gid


def make_private(folder):
    """Make a folder that nobody else can enter; refuse what others have made, or could replace.

    Folders above the home of this user are for whoever runs the machine.
    """
    home = os.path.expanduser("~").rstrip("/")
    path = home if folder.startswith(home + "/") else "/"
    for part in os.path.relpath(folder, path).split("/"):
        if not keeps_names(path):  # as /tmp and many a /scratch do; what is in it is looked at next
            require_own(path)
        path = os.path.join(path, part)
        with suppress(FileExistsError):
            os.mkdir(path, PRIVATE)
    require_own(path)
    if os.stat(path).st_uid == os.geteuid():
        os.chmod(path, PRIVATE)


def remove_others(folder, kept):
    parents = set()
    for path in kept:
        above = os.path.dirname(path)
        while above and above not in parents:
            parents.add(above)
            above = os.path.dirname(above)
    for here, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(here, name)
            known = os.path.relpath(path, folder)
            is_folder = name in folders and not os.path.islink(path)
            if known not in (parents if is_folder else kept):
                remove(path)
        folders[:] = [name for name in folders if os.path.isdir(os.path.join(here, name))]


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def make_way(folder, relative):
    """Make the folders above a file, and remove what has its name, or theirs."""
    above = folder
    for part in relative.split("/")[:-1]:
        above = os.path.join(above, part)
        if os.path.islink(above) or os.path.isfile(above):
            os.remove(above)
        os.makedirs(above, exist_ok=True)
    path = os.path.join(folder, relative)
    if os.path.lexists(path):
        remove(path)


def is_there(folder, entry):
    path = os.path.join(folder, entry["path"])
    try:
        about = os.lstat(path)
        if entry["link"] is not None:
            return stat.S_ISLNK(about.st_mode) and os.readlink(path) == entry["link"]
        if not stat.S_ISREG(about.st_mode) or about.st_size != entry["size"]:
            return False
        if digest(path) != entry["sha256"]:
            return False
        os.chmod(path, mode_of(entry))
    except OSError:
        return False
    return True


def mode_of(entry):
    """Return the permissions of a file: its owner alone may change what will run."""
    return entry["mode"] & 0o755


def digest(path):
    seen = hashlib.sha256()
    with open(path, "rb") as stream:
        for data in iter(lambda: stream.read(PIECE), b""):
            seen.update(data)
    return seen.hexdigest()


def require_room(folder, wanted):
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if wanted and free < wanted + ROOM:
        needed = -(-(wanted + ROOM) >> 20) + 1
        raise Refused(f"{needed} MiB are needed in {folder}, and {free >> 20} MiB are free")


def take_file(path, entry):
    seen, left = hashlib.sha256(), entry["size"]
    with suppress(FileNotFoundError):
        os.remove(path + PART)
    descriptor = os.open(path + PART, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode_of(entry))
        while left:
            data = source.read(min(left, PIECE))
            if not data:
                sys.exit(1)  # the client has gone
            seen.update(data)
            stream.write(data)
            left -= len(data)
    if seen.hexdigest() != entry["sha256"]:
        os.remove(path + PART)
        raise Refused(f"{entry['path']!r} was changed while it was sent")
    os.replace(path + PART, path)


def copy_once(folder, copy, size):
    """Copy a folder of `size` bytes under a name that it gets when whole; one that is there stays.

    Where files can share their blocks, that takes no room: only a copy that failed asks for it.
    """
    if os.path.exists(copy):
        return
    part = copy + PART
    if os.path.exists(part):
        shutil.rmtree(part)
    os.makedirs(os.path.dirname(copy), exist_ok=True)
    argv = ["cp", "-a", "--reflink=auto", folder, part]
    code, output = run_to_end(argv, None)
    if code:
        shutil.rmtree(part, ignore_errors=True)
        require_room(os.path.dirname(copy), size)
        raise Refused(output.strip().splitlines()[-1] if output.strip() else "cp has failed")
    os.rename(part, copy)


def fetch(request):
    """Send what has changed below `folder`: the files named by `small`, logs, and `trees`."""
    folder = os.path.expanduser(request["folder"])
    have = request["have"]
    for name in listed(folder, request["small"]):
        with suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as stream:
            sign, most = sign_of(os.fstat(stream.fileno())), request["small_most"]
            if have.get(name) != sign:
                send(stream, name, sign, max(0, sign[0] - most), most, piece=most)
    for name, offset in request["logs"].items():
        with suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as stream:
            sign, most = sign_of(os.fstat(stream.fileno())), request["logs_most"]
            if offset < sign[0] and most:
                send(stream, name, sign, offset, most)
    found = {"too_large": 0, "left_out": 0}
    for tree in request["trees"]:
        found = send_tree(folder, tree, have, request["tree_most"], request.get("part"))
    answer({"done": True, **found})


def listed(folder, names):
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            below = sorted(os.listdir(path))
            yield from listed(folder, [f"{name}/{one}" for one in below if one[:1] != "."])
        elif os.path.isfile(path):
            yield name


def sign_of(about):
    """Return what tells a file from what it was before."""
    return [about.st_size, about.st_mtime_ns]


def send(stream, name, sign, offset, most, piece=PIECE):
    """Send at most `most` bytes of an open file from `offset` on, as it was with this `sign`."""
    mode = os.fstat(stream.fileno()).st_mode & 0o777
    end = min(sign[0], offset + most)
    stream.seek(offset)
    last = False
    while not last:
        wanted = min(piece, end - offset)
        data = stream.read(wanted)
        last = len(data) < wanted or offset + len(data) >= end
        head = {"file": name, "offset": offset, "bytes": len(data), "last": last}
        answer({**head, "mode": mode, "sign": sign}, data)
        offset += len(data)


def send_tree(folder, tree, have, most, part):
    """Send files that have changed, or the rest of that of which the client has a `part`."""
    found, size, unnamed = [], 0, 0
    top = os.path.join(folder, tree)
    alone = []  # type: list[tuple[str, list[str], list[str]]]
    if os.path.isfile(top):
        alone.append((os.path.dirname(top), [], [os.path.basename(top)]))
    for here, folders, names in alone or os.walk(top):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(here, name)
            about = os.lstat(path)
            known = os.path.relpath(path, folder)
            if stat.S_ISREG(about.st_mode) and not known.isprintable():
                unnamed += 1  # control characters, or bytes that are no text
            elif stat.S_ISREG(about.st_mode):
                found.append((known, sign_of(about)))
                size += about.st_size
    if size > most:
        return {"too_large": size, "left_out": 0}
    for name, sign in found:
        if have.get(name) != sign:
            sent = part[2] if part and part[:2] == [name, sign] else 0
            with open(os.path.join(folder, name), "rb") as stream:
                send(stream, name, sign, sent, sign[0])
    return {"too_large": 0, "left_out": unnamed}


def run(request):
    """Run a program to its end; answer with its exit code, and the last that it said."""
    with alive():
        argv = [os.path.expanduser(word) for word in request["argv"]]
        code, output = run_to_end(argv, request.get("env"))
    answer({"code": code, "said": output[-4000:]})


def run_to_end(argv, env):
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def write(request):
    """Replace a small file."""
    path = os.path.expanduser(request["path"])
    with open(path + PART, "w") as stream:
        stream.write(request["text"])
    os.replace(path + PART, path)
    answer({})


OPERATIONS = {
    "look": look,
    "receive": receive,
    "fetch": fetch,
    "run": run,
    "write": write,
}


def main():
    target.write(b"\n" + sys.argv[1].encode() + b"\n")
    target.flush()
    for line in iter(source.readline, b""):
        request = json.loads(line)
        try:
            OPERATIONS[request.pop("do")](request)
        except Refused as error:
            answer({"error": str(error)})
            return 1
        except BrokenPipeError:
            return 1
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            answer({"error": f"{error.strerror or error}{where}"})
            return 1
    return 0


sys.exit(main())

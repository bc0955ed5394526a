"""Print the interpreter of a job, and the versions of what it would import, as KEY=VALUE lines.

Runs under any Python, so that an old one is named and does not end in a syntax error. Importing
torch takes seconds; its version.py and the metadata of packages say the same.
"""

import os
import re
import sys


def say(key, value):
    sys.stdout.write("%s=%s\n" % (key, " ".join(str(value).split())))


say("executable", sys.executable)
say("version", ".".join(map(str, sys.version_info[:3])))
try:
    say("noexec", int(bool(os.statvfs(sys.prefix).f_flag & os.ST_NOEXEC)))
except Exception:
    say("noexec", 0)
try:
    from importlib.util import find_spec
except ImportError:
    find_spec = None  # type: ignore[assignment]
try:
    from importlib.metadata import version
except ImportError:
    version = None  # type: ignore[assignment]


def found(name, wanted):
    try:
        return version(name)
    except Exception:
        pass
    try:  # it may be installed by another name, such as a build for processors
        return wanted and find_spec(name.replace("-", "_")).origin and "unknown"  # type: ignore[union-attr]
    except Exception:
        return None


KNOWN = "clusterkit submitit torch deepspeed horovod accelerate"
for name in (KNOWN + " nvidia-nccl-cu11 nvidia-nccl-cu12 nvidia-nccl-cu13").split():
    if name not in sys.argv and found(name, False):
        say("package " + name, found(name, False))
WHICH = "--which="
for name in [word for word in sys.argv[1:] if not word.startswith(WHICH)]:
    if found(name, True):
        say("package " + name, found(name, True))
try:
    torch = find_spec("torch").origin  # type: ignore[union-attr]
    where = os.path.join(os.path.dirname(torch), "version.py")  # type: ignore[arg-type]
    with open(where) as file:
        text = file.read()
    for key, name in (("torch", "__version__"), ("cuda", "cuda"), ("hip", "hip")):
        match = re.search(r"(?m)^%s[ \t]*(?::[^=\n]*)?=[ \t]*['\"](.*?)['\"]" % name, text)
        say("built " + key, match.group(1) if match else "")
except Exception:
    pass
try:  # beside this interpreter first, as the launcher looks
    from shutil import which

    places = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
    programs = [word[len(WHICH) :] for word in sys.argv[1:] if word.startswith(WHICH)]
    say("which", next(filter(None, (which(name, path=places) for name in programs)), ""))
except ImportError:
    pass
say("whole", 1)

"""The job's own interpreter and the versions of what it would import, without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.core.data import read_snippet, read_template
from clusterkit.core.distribution import DISTRIBUTION
from clusterkit.core.shell import quote, quote_path
from clusterkit.images.packages import framework_called, package_of
from clusterkit.preflight.probes.net.pairs import read_pairs, text_of
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

# Runs under any Python, so that an old one is named and does not end in a syntax error. Importing
# torch takes seconds; its version.py and the metadata of packages say the same.
_PROGRAM = r"""
import os, re, sys
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
    find_spec = None
try:
    from importlib.metadata import version
except ImportError:
    version = None
def found(name, wanted):
    try:
        return version(name)
    except Exception:
        pass
    try:  # it may be installed by another name, such as a build for processors
        return wanted and find_spec(name.replace("-", "_")).origin and "unknown"
    except Exception:
        return None
for name in ("@OURS@", "clusterkit", "submitit", "torch", "deepspeed", "horovod", "accelerate",
             "nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
    if name not in sys.argv and found(name, False):
        say("package " + name, found(name, False))
for name in sys.argv[1:]:
    if found(name, True):
        say("package " + name, found(name, True))
if find_spec:
    try:
        where = os.path.join(os.path.dirname(find_spec("torch").origin), "version.py")
        with open(where) as file:
            text = file.read()
        for key, name in (("torch", "__version__"), ("cuda", "cuda"), ("hip", "hip")):
            found = re.search(r"(?m)^%s[ \t]*(?::[^=\n]*)?=[ \t]*['\"](.*?)['\"]" % name, text)
            say("built " + key, found.group(1) if found else "")
    except Exception:
        pass
say("whole", 1)
"""

_SNIPPET = """
python=@PYTHON@
command -v "$python" >/dev/null || { echo absent=1; echo end; exit 0; }
"$python" -c @PROGRAM@ @PACKAGE@ && echo end
"""

_HANDED_ON = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
"""Variables of the job that decide which interpreter it gets, and whether that starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPython:
    """An interpreter and what is installed for it."""

    executable: str
    version: str
    noexec: bool
    """Whether it lies on a mount from which no library can be loaded."""
    packages: Mapping[str, str]
    torch: str | None
    cuda: str | None
    """The CUDA that torch was built for; None in a build without."""
    hip: str | None
    nccl: str | None
    """Of the wheel that torch loads it from; None where NCCL comes another way."""


def _command(job: PreflightJob) -> str | None:
    if job.container_runtime is not None:
        return None  # the job's interpreter is the one of the image
    words = [f"{name}={quote(job.env[name])}" for name in _HANDED_ON if name in job.env]
    exports = f"export {' '.join(words)}\n" if words else ""
    framework = framework_called(job.framework)
    package = package_of(framework) if framework is not None else None
    return exports + read_snippet(
        "job_python",
        python=quote_path(job.python),
        program=quote(read_template("programs/preflight/job_packages.py")),
        package=f"{DISTRIBUTION} {quote(package) if package else ''}",
    )


def parse(text: str) -> JobPython | None:
    """Read the pairs of the program; None where there is no such interpreter."""
    pairs = read_pairs(text)
    if "absent" in pairs:
        return None
    if "whole" not in pairs or pairs.get("noexec") not in {"0", "1"}:
        raise Unparsed("not what the program prints")
    packages = {
        key.removeprefix("package "): value
        for key, value in pairs.items()
        if key.startswith("package ") and value
    }
    nccl = [value for name, value in packages.items() if name.startswith("nvidia-nccl-")]
    return JobPython(
        executable=text_of(pairs, "executable"),
        version=text_of(pairs, "version"),
        noexec=pairs["noexec"] == "1",
        packages=packages,
        torch=pairs.get("built torch") or packages.get("torch"),
        cuda=pairs.get("built cuda") or None,
        hip=pairs.get("built hip") or None,
        nccl=nccl[0] if len(nccl) == 1 else None,
    )


PROBE = Probe(name="job-python", command=_command, parse=parse, timeout_s=20.0)

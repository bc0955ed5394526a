"""Print what is in this image, as JSON. It runs inside, by the image's own Python."""

import contextlib
import getpass
import json
import platform
import re
import subprocess
from importlib import metadata

torch_cuda = torch_hip = None
with contextlib.suppress(ImportError):
    from torch import version

    torch_cuda, torch_hip = version.cuda, version.hip
packages = {found.metadata["Name"]: found.version for found in metadata.distributions()}
listed = subprocess.run(
    ["dpkg-query", "-W", "-f", "${Package} ${Version}\n"],
    capture_output=True,
    text=True,
    check=True,
)
with open("/etc/os-release", encoding="utf-8") as release:  # noqa: PTH123
    name = re.search(r'PRETTY_NAME="(.*)"', release.read())
document = {
    "system": name.group(1) if name else "Linux",
    "user": getpass.getuser(),
    "python": platform.python_version(),
    "torch": packages.get("torch"),
    "torch_cuda": torch_cuda,
    "torch_hip": torch_hip,
    "python_packages": dict(sorted(packages.items())),
    "debian_packages": dict(line.split() for line in listed.stdout.splitlines()),
}
print(json.dumps(document))

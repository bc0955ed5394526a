"""Say why the torch of an image will not see the node's GPUs: look.py nvidia|amd DRIVER.

Reads torch's own version file, and imports nothing of it: that would take seconds. The oldest
drivers are those of NVIDIA's release notes on minor version compatibility, by CUDA's version.
"""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

OLDEST_DRIVER = {"11": 450, "12": 525, "13": 580}
DEVICES = {
    "nvidia": ("CUDA", "cuda", ("/dev/nvidiactl", "/dev/dxg")),
    "amd": ("ROCm", "hip", ("/dev/kfd",)),
}


def complaint(kind, driver):
    spec = find_spec("torch")
    if spec is None or not spec.origin:
        return None
    text = Path(spec.origin).with_name("version.py").read_text()
    platform, variable, devices = DEVICES[kind]
    torch, built_for = (value_of(text, name) for name in ("__version__", variable))
    if not built_for:
        return f"torch {torch} of the image is no {platform} build, and the node has such GPUs"
    if not any(Path(device).exists() for device in devices):
        return f"the container got no {devices[0]}: is the node's container toolkit set up?"
    oldest = OLDEST_DRIVER.get(built_for.split(".")[0]) if kind == "nvidia" and driver else None
    if oldest and int(driver.split(".")[0]) < oldest:
        needed = f"needs driver {oldest} or later, and the node has {driver}"
        return f"torch {torch} of the image (CUDA {built_for}) {needed}"
    return None


def value_of(text, name):
    found = re.search(rf"(?m)^{name}[ \t]*(?::[^=\n]*)?=[ \t]*['\"](.*?)['\"]", text)
    return found.group(1) if found else ""


if __name__ == "__main__":
    problem = complaint(sys.argv[1], sys.argv[2])
    if problem:
        node = os.environ.get("CK_NODE_NAME", "")
        print(f"clusterkit: warning: {node}: {problem}", file=sys.stderr)

"""What puts a node's command into an image: a shell text for each container runtime.

The texts stand in `templates/container/`: `common.sh`, and one of the runtime, which defines
`ck_enter` (leaves in `ck_inside` the words before the command) and `ck_leave` (removes what is
left). `inside.sh` is the first process in the image.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.core.data import read_data
from clusterkit.core.model import ContainerRuntime

_PARTS: Mapping[ContainerRuntime, tuple[str, ...]] = {
    ContainerRuntime.DOCKER: ("docker.sh",),
    ContainerRuntime.COMPOSE: ("docker.sh", "compose.sh"),
    ContainerRuntime.APPTAINER: ("apptainer.sh",),
    ContainerRuntime.ENROOT: ("enroot.sh",),
    ContainerRuntime.PYXIS: ("pyxis.sh",),
}
_INSIDE = ("inside.sh", "look.py")


def container_functions(runtime: ContainerRuntime) -> str:
    """Return the shell text that node scripts of jobs under `runtime` hold."""
    parts = ("common.sh", *_PARTS[runtime])
    return "\n".join(read_data("templates", "container", name) for name in parts)


def container_files() -> dict[str, str]:
    """Return the texts, by file name, that have to be in `CK_TMP` when the image is entered."""
    return {name: read_data("templates", "container", name) for name in _INSIDE}

"""Say of a launcher that could not be imported which package its Python lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from clusterkit.core import files
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.run.runfolder import RunFolder

_MISSING = re.compile(r"No module named '?([A-Za-z_]\w*)")
"""What Python says: of an import with quotes, of `python -m` without."""


def explain_missing(run: RunFolder, me: Identity, words: Sequence[str]) -> tuple[str, ...]:
    """Return what to do where the last words are that the framework's package is not there.

    The lines are added to the log of the node as well. Whatever else a script imports, its own last
    words have named.
    """
    found = [match[1] for line in words if (match := _MISSING.search(line))]
    plan = files.read_json(run.plan) if found else None
    lines = _lines(plan, me, found[-1]) if plan is not None else ()
    for line in lines:
        files.append_line(run.log(me.rank), line)
    return lines


def _lines(plan: Mapping[str, Any], me: Identity, module: str) -> tuple[str, ...]:
    # Loads the frameworks and the catalogue of images, and only here.
    from clusterkit.images.packages import (  # noqa: PLC0415
        framework_called,
        module_of,
        package_of,
        remedies,
    )

    framework = framework_called(plan.get("framework"))
    package = package_of(framework) if framework is not None else None
    if framework is None or package is None or module not in {module_of(package), framework.name}:
        return ()
    container = plan.get("container")
    python = (plan.get("cluster") or {}).get("python") or "python3"
    whose = f"the image {container['image']}" if container else f"{python} on {me.name}"
    first, *others = remedies(framework, "python3" if container else python)
    what = f"framework {framework.name} needs the package {package}, which {whose} does not have"
    return (f"clusterkit: {what}", f"hint: {first}", *(f"  {other}" for other in others))

"""The package that a framework needs of a job's Python, and where to get it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterkit.core.distribution import own_requirements
from clusterkit.core.errors import UserError

if TYPE_CHECKING:
    from clusterkit.launch.frameworks import Framework


def framework_called(name: str | None) -> Framework | None:
    """Return a framework; None where there is none of that name here, as of another machine's."""
    from clusterkit.launch.frameworks import load_framework  # noqa: PLC0415 - few need one

    try:
        return load_framework(name) if name else None
    except UserError:
        return None


def module_of(package: str) -> str:
    """Return what a package is usually imported by."""
    return package.replace("-", "_").replace(".", "_")


def pip_line(framework: Framework, python: str) -> str:
    """Return the command that installs the package for `python`."""
    return shlex.join((python, "-m", "pip", "install", *_requirements(framework)))


def remedies(framework: Framework, python: str) -> tuple[str, ...]:
    """Return what to type, and which image has the package where one of ours does."""
    image = image_with(framework)
    has_it = (f"or an image that has it: --container docker --image {image}",) if image else ()
    return (pip_line(framework, python), *has_it)


def image_with(framework: Framework) -> str | None:
    """Return the name of an image that has the package; None where the catalogue has none."""
    from clusterkit.images.catalogue import IMAGES, lineage  # noqa: PLC0415 - reads a long file
    from clusterkit.launch.frameworks.base import PACKAGE_NAME  # noqa: PLC0415

    if "/" in framework.image:
        return framework.image  # of somebody else, by its whole name
    package = framework.package_name
    image = IMAGES.get(framework.image)
    if image is None or package is None:
        return None
    inside = {
        found[0]
        for known in lineage(image)
        for requirement in (*known.packages, *known.sources)
        if (found := PACKAGE_NAME.match(requirement))
    }
    return f"clusterkit/{image.name}:cuda" if package in inside else None


def _requirements(framework: Framework) -> tuple[str, ...]:
    """Return what to install: our extra of that name has the versions that go together.

    By what is in it, as the node's Python need not have clusterkit.
    """
    return own_requirements(extra=framework.package) or (framework.package,)

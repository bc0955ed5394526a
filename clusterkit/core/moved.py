"""Modules of the version before, by the names that queued jobs and plug-ins know them by.

Scripts of queued jobs name `python -m clusterkit.worker`, their pickles name classes by their
modules, and plug-ins of others import `clusterkit.frameworks.base`. Goes with the next release.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # typing takes some milliseconds, in every worker as well
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

MOVED = {
    "clusterkit.checks": "clusterkit.preflight.checks",
    "clusterkit.errors": "clusterkit.core.errors",
    "clusterkit.executors.local_controller": "clusterkit.executors.local.controller",
    "clusterkit.executors.pickles": "clusterkit.executors.submitit_job",
    "clusterkit.executors.ssh_executor": "clusterkit.executors.ssh.submitit",
    "clusterkit.executors.ssh_function": "clusterkit.executors.ssh.function",
    "clusterkit.executors.ssh_keeper": "clusterkit.executors.ssh.agent",
    "clusterkit.findings": "clusterkit.core.findings",
    "clusterkit.frameworks": "clusterkit.launch.frameworks",
    "clusterkit.model": "clusterkit.core.model",
    "clusterkit.probes": "clusterkit.preflight.probes",
    "clusterkit.probes.base": "clusterkit.transport.probe",
    "clusterkit.shell": "clusterkit.core.shell",
    "clusterkit.worker": "clusterkit.executors.node",
}
"""What lies below a package that has moved is found below its new name."""


def new_name(name: str) -> str | None:
    """Return the name of a module that has moved; None for any other."""
    known, rest = name, ""
    while "." in known:
        if known in MOVED:
            return MOVED[known] + rest
        known, _, last = known.rpartition(".")
        rest = f".{last}{rest}"
    return None


class _Moved:
    """Find and load a module by its old name: one module under two names, not two of them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how to import a module that has moved; None for any other, and what is gone."""
        del path, target
        found = self._new(name) if new_name(name) else None
        if found is None:
            return None
        package = found.submodule_search_locations is not None
        return ModuleSpec(name, self, is_package=package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of the new name."""
        module = importlib.import_module(str(new_name(spec.name)))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        """Leave the module as it is, under its own specification."""
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, name: str) -> CodeType | None:
        """Return what `python -m` runs."""
        code: CodeType | None = self._new(name).loader.get_code(new_name(name))
        return code

    @staticmethod
    def _new(name: str) -> Any:
        from importlib.util import find_spec  # noqa: PLC0415 - loads contextlib, in every start

        return find_spec(str(new_name(name)))


def know_old_names() -> None:
    """Let an import of an old name end at the new one."""
    sys.meta_path.insert(0, _Moved())

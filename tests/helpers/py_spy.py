"""Whether py-spy is here, which looks at the stacks of ranks."""

from __future__ import annotations

import os
import shutil

import pytest


def require_py_spy() -> None:
    """Skip where py-spy is missing; fail in CI, where it must not be."""
    if shutil.which("py-spy") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("py-spy is missing: pip install py-spy")
        pytest.skip("py-spy is missing: pip install py-spy")

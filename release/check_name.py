"""Refuse to build a release whose name is somebody else's on the package index.

    python -m release.check_name            exit code 1 where it is, else 0

Ours are the versions in released.txt; any other version there is by somebody else. pip is asked, as
it is set up on this machine, and sees what this Python could install. Where no index answers, a
wheel can be built, and the name is to be checked again before the wheel is published.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from clusterkit.core.distribution import DISTRIBUTION

RELEASED = Path(__file__).parent / "released.txt"
_KNOWN = "pip"
"""A package that every index has: where it is not found, no index was reached."""
_ASK_S = 120


def versions_on_index(name: str) -> frozenset[str]:
    """Return the versions of a package on the index; none where there is no such package.

    Raises:
        OSError: pip did not answer in time.
    """
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    argv += ["--retries", "1", "index", "versions", "--pre", name]
    try:
        said = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"pip did not answer within {_ASK_S} s") from error
    found = re.search(r"^Available versions: (.*)$", said.stdout, re.MULTILINE)
    return frozenset(found[1].split(", ")) if found else frozenset()


def main() -> int:
    """Say whose the name is."""
    ours = {line for line in RELEASED.read_text().splitlines() if not line.startswith("#")}
    try:
        foreign = versions_on_index(DISTRIBUTION) - ours
        reached = bool(foreign) or bool(versions_on_index(_KNOWN))
    except OSError as error:
        foreign, reached = frozenset(), False
        print(f"release: {error}", file=sys.stderr)
    if foreign:
        print(
            f"release: {DISTRIBUTION} {', '.join(sorted(foreign))} on the index is not in "
            f"{RELEASED.name}, so it is somebody else's. Nothing is built.\n"
            "  choose another name: pyproject.toml, and DISTRIBUTION in "
            "clusterkit/core/distribution.py",
            file=sys.stderr,
        )
        return 1
    if not reached:
        print(
            f"release: no package index can be reached, so nobody knows whose {DISTRIBUTION} is "
            "there. Check it before you publish: python -m release.check_name",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

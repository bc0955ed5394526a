"""Look for known vulnerabilities of the Python packages in an image, by PyPA's pip-audit.

pip-audit asks a service, which may be out of reach, or be a mirror of packages that knows no
vulnerabilities. Of such a mirror's answers ("not found", or a document without them) pip-audit
2.10 makes "No known vulnerabilities found" and exit code 0. So it is asked for a release as well
that has some, and an answer that does not tell them is none.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.commands import run_command
from clusterkit.core.distribution import is_ours, normal_name
from clusterkit.core.errors import RemoteError
from clusterkit.images.inside import last_line, read_manifest

PROGRAM = "pip-audit"
VULNERABLE = ("django", "3.2")
"""A release with known vulnerabilities (CVE-2021-31542 is the first), and in no image."""
_SCAN_S = 600.0
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Vulnerability:
    """One that is known of a package inside."""

    package: str
    version: str
    id: str
    fixed_in: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What is known of the Python packages of an image; those of Debian are not asked for."""

    scanned: int = 0
    """Packages that the service knows."""
    unknown: tuple[str, ...] = ()
    """Packages that it does not know."""
    vulnerabilities: tuple[Vulnerability, ...] = ()
    not_scanned: str | None = None
    """Why nothing is known; then none of the other fields says anything."""


def scan(tag: str) -> Scan:
    """Ask for the packages of an image that is built here; it takes a request for each."""
    asked = run_command((PROGRAM, "--version"))
    if not asked.ok:
        return Scan(not_scanned=f"{asked.complaint} (pip install {PROGRAM})")
    try:
        inside = read_manifest(tag).python_packages
    except RemoteError as error:
        return Scan(not_scanned=str(error))
    # +cpu and the like: which build of a version, of which no service knows.
    packages = {
        normal_name(name): version.partition("+")[0]
        for name, version in inside.items()
        if not is_ours(name)
    }
    wanted = {**packages, VULNERABLE[0]: VULNERABLE[1]}
    with tempfile.TemporaryDirectory(prefix="clusterkit-scan-") as folder:
        listed = Path(folder) / "requirements.txt"
        files.write_text(listed, "".join(f"{name}=={wanted[name]}\n" for name in wanted))
        argv = (
            PROGRAM, "--requirement", str(listed), "--no-deps", "--disable-pip",
            "--format=json", "--desc=off", "--progress-spinner=off",
        )  # fmt: skip
        answer = run_command(argv, timeout_s=_SCAN_S)
    try:
        return read_answer(answer.output)
    except ValueError as error:
        why = last_line(answer.errors) if not answer.output.strip() else str(error)
        return Scan(not_scanned=f"{PROGRAM}: {why[:_SHOWN_CHARACTERS]}")


def read_answer(text: str) -> Scan:
    """Return what pip-audit says of packages (its --format=json).

    Raises:
        ValueError: it is not that, or of no package, or not of the release with vulnerabilities.
    """
    unknown, found, known = [], [], 0
    told = False
    try:
        for one in json.loads(text)["dependencies"]:
            name = normal_name(one["name"])
            if name == VULNERABLE[0]:
                told = bool(one.get("vulns"))
            elif "skip_reason" in one:
                unknown.append(name)
            else:
                known += 1
                found += [
                    Vulnerability(
                        package=name,
                        version=str(one["version"]),
                        id=str(each["id"]),
                        fixed_in=tuple(map(str, each["fix_versions"])),
                    )
                    for each in one["vulns"]
                ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an answer of another form ({error})") from error
    if not told:
        release = " ".join(VULNERABLE)
        raise ValueError(f"its service knows no vulnerabilities, not even those of {release}")
    if not known:
        raise ValueError("its service knows none of the packages")
    return Scan(scanned=known, unknown=tuple(unknown), vulnerabilities=tuple(found))

"""Why a build failed: the step's own words, and what to do where these are well known."""

from __future__ import annotations

import re

from clusterkit.core.docker_errors import docker_trouble
from clusterkit.core.errors import RemoteError
from clusterkit.images.progress import Progress, Step

_SHOWN_LINES = 30
_CA = r"CERTIFICATE_VERIFY_FAILED|certificate verif\w+ failed|signed by unknown authority"
_OFFLINE = (
    r"Temporary failure (in name resolution|resolving)|Could not resolve|Network is unreachable"
    r"|Name or service not known|Failed to establish a new connection"
)
_APT = r"Unable to locate package|has no installation candidate|Unable to fetch some archives"
_KNOWN = {
    r"No matching distribution found for torch==\S+\+(cpu|rocm)": "this build of torch is on "
    "PyTorch's own index (pytorch.org, Get started): name it in a pip.conf, and give that with "
    "--pip-conf FILE",
    r"DO NOT MATCH THE HASHES": "the index serves another file than the lock file names: find out "
    "why, or accept it with clusterkit images lock",
    _CA: "behind a proxy that opens TLS, give its certificates with --ca FILE",
    r"network bridge not found": "this engine has no bridge for containers: --network host",
    _OFFLINE: "builds cannot reach what they download: --network host, or HTTPS_PROXY in the "
    "environment, or mirrors with --apt-sources FILE and --pip-conf FILE",
    _APT: "the sources of Debian packages do not have it: give others with --apt-sources FILE",
    r"No matching distribution found for": "the package index does not have it: give another with "
    "--pip-conf FILE",
}
"""What a failed step prints -> what to do; the first that fits."""

_METADATA = re.compile(r"\[(\S+ )?internal\] load metadata for (?P<image>\S+)")


def explain_failure(name: str, progress: Progress, code: int) -> RemoteError:
    """Return the error of a build that ended with `code`."""
    step = progress.failed
    if step is None:
        said = "\n".join(list(progress.rest)[-_SHOWN_LINES:]) or f"docker ended with code {code}"
        return RemoteError(f"{name} was not built\n{_indent(said)}", hint=_hint(said))
    unpulled = _METADATA.match(step.name)
    if unpulled:
        return RemoteError(
            f"{name} was not built: its base image {unpulled['image']} cannot be pulled\n"
            f"{_indent(step.error)}",
            hint="name one that is there (docker image ls) with --root IMAGE; or else see to the "
            "network, the proxy of the Docker daemon, or docker login",
        )
    said = _said(step)
    return RemoteError(
        f"{name} was not built: this step failed\n  {step.name}\n{_indent(said)}",
        hint=_hint(f"{said}\n{step.error}"),
    )


def _said(step: Step) -> str:
    lines = list(step.output)
    shown = lines[-_SHOWN_LINES:]
    if len(lines) > len(shown):
        shown.insert(0, f"... (the last {_SHOWN_LINES} lines; --verbose shows all)")
    return "\n".join((*shown, step.error))


def _hint(said: str) -> str | None:
    for pattern, hint in _KNOWN.items():
        if re.search(pattern, said, re.IGNORECASE):
            return hint
    return docker_trouble(said).hint


def _indent(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())

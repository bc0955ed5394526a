"""What an image was built from, as SLSA 1 provenance in a statement of in-toto.

The forms: slsa.dev/spec/v1.0/provenance and the Statement v1 of in-toto/attestation. There is no
date in it, so the same build makes the same file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from clusterkit.core.distribution import normal_name
from clusterkit.core.version import __version__
from clusterkit.images.recipe import BuildOptions, Target

_PIN = re.compile(
    r"^([A-Za-z0-9._-]{1,200})==(\S{1,200}) \\\n {1,8}--hash=sha256:([0-9a-f]{64})", re.MULTILINE
)
_LOCKS = ("requirements.txt", "source.txt")


def provenance(
    target: Target, options: BuildOptions, built: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return the statement of an image; `built` has the digest of each tag that this build made.

    What was lent (certificates, a pip.conf, proxies) is in no image, and not in here.
    """
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": tag, "digest": _digest(built[target.tags[0]])} for tag in target.tags],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:clusterkit:images-build:1",
                "externalParameters": {
                    "image": target.name,
                    "platform": options.platform,
                    "root": options.root,
                    "arguments": dict(target.arguments),
                },
                "internalParameters": {"recipe": target.recipe},
                "resolvedDependencies": list(_materials(target, built)),
            },
            "runDetails": {
                "builder": {"id": "urn:clusterkit", "version": {"clusterkit": __version__}},
            },
        },
    }


def _materials(target: Target, built: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yield the image below, the files of the context, and the packages of its locks."""
    below = target.arguments["PARENT"]
    name, _, pinned = below.partition("@")
    known = built.get(below, pinned)
    yield {"uri": f"docker:{name}", **({"digest": _digest(known)} if known else {})}
    for path, data in sorted(target.context.files.items()):
        yield {"name": path, "digest": {"sha256": hashlib.sha256(data).hexdigest()}}
    for path in _LOCKS:
        text = target.context.files.get(path, b"").decode()
        for package, version, sha256 in _PIN.findall(text):
            uri = f"pkg:pypi/{normal_name(package)}@{quote(version)}"
            yield {"uri": uri, "digest": {"sha256": sha256}}


def _digest(text: str) -> Mapping[str, str]:
    algorithm, _, value = text.partition(":")
    return {algorithm: value}

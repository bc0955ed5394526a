"""Of which cloud a machine is, by its firmware, and what the cloud's metadata service says of it.

The firmware's names are SMBIOS's, as Linux shows them in `/sys/class/dmi/id`. Only a machine that
they say is of a cloud asks its service, over a link-local address. Nobody vouches for what answers:
it has a second in all and 64 KiB, no proxy is used, and no redirection followed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

from clusterkit.core.data import data_dir, read_table

CLOUDS = {
    "aws": ("sys_vendor", "Amazon EC2"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    "gcp": ("product_name", "Google Compute Engine"),
    "oci": ("chassis_asset_tag", "OracleCloud.com"),
}
"""A file of `/sys/class/dmi/id` and what it says on machines of each cloud, as the data sources of
canonical/cloud-init have it."""
_LONGEST_DMI = 256


def machine_root() -> Path:
    """Return the folder that stands for `/` where a machine is recognised; tests have their own."""
    return Path(os.environ.get("CLUSTERKIT_MACHINE_ROOT") or "/")


def cloud_of(root: Path) -> str | None:
    """Return which of `CLOUDS` the machine with these files is of; None for none."""
    signs = CLOUDS.items()
    return next((cloud for cloud, (name, says) in signs if read_dmi(root, name) == says), None)


def read_dmi(root: Path, name: str) -> str:
    """Return what a file of the machine's DMI says; empty where it is missing or closed to us."""
    try:
        with (root / "sys/class/dmi/id" / name).open("rb") as file:
            return file.read(_LONGEST_DMI).decode("utf-8", "replace").strip()
    except OSError:
        return ""


INSTANCE_TYPE = "instance type"
ADDRESS = ("169.254.169.254", 80)
ANSWER_S = 1.0
_LARGEST = 1 << 16
_TOKEN, _TOKEN_HEADER = "/latest/api/token", "X-aws-ec2-metadata-token"


def ask(path: str, headers: Mapping[str, str], *, method: str = "GET") -> str | None:
    """Return what the service answers; None for nothing in time, or for what is no answer."""
    answers: list[str | None] = []
    # A thread, as the time of a socket is that of each piece, and an answer may come in drips.
    asking = threading.Thread(
        target=lambda: answers.append(_answer(path, headers, method)), daemon=True
    )
    asking.start()
    asking.join(ANSWER_S)
    return answers[0] if answers else None


def _answer(path: str, headers: Mapping[str, str], method: str) -> str | None:
    import http.client  # noqa: PLC0415 - for the machines of a cloud alone

    connection = http.client.HTTPConnection(*ADDRESS, timeout=ANSWER_S)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        body = answer.read(_LARGEST + 1)
    except (OSError, ValueError, http.client.HTTPException):  # a token that is no header, say
        return None
    finally:
        connection.close()
    whole = answer.status == http.client.OK and len(body) <= _LARGEST
    return body.decode("utf-8", "replace") if whole else None


def answers(cloud: str, tells: Collection[str]) -> dict[str, str]:
    """Return what the service of a cloud says to these of its questions; empty where nothing.

    AWS hands out a token first (IMDSv2), which its older service does without.
    """
    token = (
        ask(_TOKEN, {f"{_TOKEN_HEADER}-ttl-seconds": "60"}, method="PUT") if cloud == "aws" else ""
    )
    headers = {_TOKEN_HEADER: token} if token else {}
    return {
        row["tells"]: ask(row["path"], _header(row) or headers) or ""
        for row in questions(cloud)
        if row["tells"] in tells
    }


def _header(row: Mapping[str, str]) -> dict[str, str]:
    name, said, value = row["header"].partition(": ")
    return {name: value} if said else {}


@lru_cache
def questions(cloud: str | None) -> tuple[Mapping[str, str], ...]:
    """Return the rows of `metadata.tsv` that a machine of this cloud asks."""
    rows = read_table(data_dir("templates/platforms") / "metadata.tsv")
    return tuple(row for row in rows if row["cloud"] == cloud)

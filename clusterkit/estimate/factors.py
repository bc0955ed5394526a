"""What was measured on a cluster, as factors on what is estimated without it, and where they stay.

One JSON file for each cluster, `~/.config/clusterkit/calibration/CLUSTER.json`: the fields of
`Calibration`, and a line that says what was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from clusterkit.config.sources import user_file
from clusterkit.core import files, ownership
from clusterkit.core.errors import Position, UserError

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Factors from one measured step and one measured all-reduce; the defaults change nothing."""

    activation_scale: float = 1.0
    """Measured over estimated bytes of everything allocated beside states that follow from the
    number of parameters: activations, logits, gathered layers."""
    reserved_ratio: float | None = None
    """`max_memory_reserved / max_memory_allocated`; None for the usual one."""
    context_bytes: float | None = None
    """What the process holds on the GPU outside torch's allocator; None for the usual amount."""
    utilisation_scale: float = 1.0
    """Measured over estimated speed of computing: a step takes 1 / this of its time."""
    intra_busbw_scale: float = 1.0
    """Measured over estimated bus bandwidth within a node."""
    inter_busbw_scale: float = 1.0
    """The same between nodes."""
    measured_step: bool = False
    """Whether a step was measured: the interval of a step's time is narrow then."""
    gpu: str = ""
    """The GPU that was measured: nothing holds for another one. Empty for any."""
    subject: str = ""
    """What was measured, in words: model, strategy and GPUs."""
    note: str = ""
    """What the measurement does not say, and why; empty where it says everything."""

    def on(self, gpu: str) -> Calibration:
        """Return what of it holds on a GPU of this name: all or nothing."""
        return self if self.gpu in {"", gpu} else Calibration()


def calibration_file(cluster: str, environ: Mapping[str, str]) -> Path:
    """Return where the calibration of a cluster stays.

    Raises:
        UserError: there is no home folder.
    """
    beside = user_file(environ)
    if beside is None:
        raise UserError(
            "there is no folder for what is measured", hint="set HOME or XDG_CONFIG_HOME"
        )
    return beside.parent / "calibration" / f"{cluster.replace('/', '_')}.json"


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Write `calibration` to its file, over the one that was there."""
    files.create_folder(path.parent)
    files.write_json(path, {"schema": SCHEMA, **asdict(calibration)})


def load_calibration(path: Path) -> Calibration | None:
    """Return the calibration in a file; None where there is no such file.

    Raises:
        UserError: the file is not one that `save_calibration` wrote.
    """
    if not path.exists():
        return None
    with files.explained(path, "read"):
        text = ownership.read_own(path, use="estimate by it", hint="measure again")
    try:
        document = json.loads(text)
        return _parsed(document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"this is not a calibration: {error}",
            hint=f"measure again (`clusterkit estimate --calibrate FILE`), or remove {path}",
            position=Position(source=str(path)),
        ) from error


def _parsed(document: Mapping[str, Any]) -> Calibration:
    known = {field.name for field in fields(Calibration)}
    values = {name: value for name, value in document.items() if name in known}
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']} instead of {SCHEMA}")
    for name in known - {"measured_step", "gpu", "subject", "note"}:
        value = values.get(name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}")
    return Calibration(**values)

"""What was measured on a cluster, as factors on what is estimated without it, and where they stay.

One JSON file for each cluster, `~/.config/clusterkit/calibration/CLUSTER.json`: the fields of
`Calibration`, and a line that says what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from clusterkit.config.sources import user_file
from clusterkit.core import files, ownership
from clusterkit.core.bounds import Within
from clusterkit.core.errors import Position, UserError
from clusterkit.core.records import record_of

SCHEMA = 1
Factor = Annotated[float, Within(1e-9, 1e15)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Factors from one measured step and one measured all-reduce; the defaults change nothing."""

    activation_scale: Factor = 1.0
    """Measured over estimated bytes of everything allocated beside states that follow from the
    number of parameters: activations, logits, gathered layers."""
    reserved_ratio: Factor | None = None
    """`max_memory_reserved / max_memory_allocated`; None for the usual one."""
    context_bytes: Factor | None = None
    """What the process holds on the GPU outside torch's allocator; None for the usual amount."""
    utilisation_scale: Factor = 1.0
    """Measured over estimated speed of computing: a step takes 1 / this of its time."""
    intra_busbw_scale: Factor = 1.0
    """Measured over estimated bus bandwidth within a node."""
    inter_busbw_scale: Factor = 1.0
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
    document = files.parse_json(text) or {}
    found = record_of(Calibration, document) if document.get("schema") == SCHEMA else None
    if found is None:
        raise UserError(
            "this is not a calibration, or one of another release",
            hint=f"measure again (`clusterkit estimate --calibrate FILE`), or remove {path}",
            position=Position(source=str(path)),
        )
    return found

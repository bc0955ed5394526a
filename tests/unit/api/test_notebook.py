"""The notebook of the examples, run from its first cell to its last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from clusterkit.core.distribution import wheel_name
from clusterkit.core.version import __version__
from clusterkit.transport.sync.wheel import pack_wheel
from tests.helpers.needs import require
from tests.helpers.paths import ROOT

INSTALLED = {
    "PIP_TARGET": "{site}",
    "PYTHONPATH": "{site}",
    "PIP_NO_DEPS": "1",  # what it needs is there
    "PIP_NO_INDEX": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""Where the notebook installs the wheel, and takes it from, whatever else is installed."""
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def test_it_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.train
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the cluster `local`, as on Colab: two nodes learn, one job fails and says why."""
    require("torch")
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / wheel_name(__version__)).write_bytes(pack_wheel())
    (tmp_path / "site").mkdir()
    for name, value in INSTALLED.items():
        monkeypatch.setenv(name, value.format(site=tmp_path / "site"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path / "desk")}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    shown = [said(cell) for cell in notebook.cells if cell.cell_type == "code"]
    everything = "\n".join(shown)
    assert (tmp_path / "site" / "clusterkit" / "_data" / "templates").is_dir()
    assert str(tmp_path / "site") in shown[1]
    assert "zero1" in shown[2] or "fsdp" in shown[2]
    assert "1 node usable" in shown[3]
    assert "world size 2" in everything
    assert "step 60 loss 0.0" in everything
    assert "'succeeded'" in shown
    assert "failed - node-1: rank 1 exited with 1\n" in everything
    assert "rank 1 has had enough" in everything
    assert "hint: did you mean 'torchrun'?" in everything
    assert (tmp_path / "desk" / "by-hand" / "node.sh").exists()
    assert not [output for cell in notebook.cells for output in outputs(cell) if is_trouble(output)]


def outputs(cell: Any) -> list[Any]:
    return list(cell.get("outputs", ()))


def is_trouble(output: Any) -> bool:
    return bool(output.output_type == "error" or output.get("name") == "stderr")


def said(cell: Any) -> str:
    """Return what a cell shows: streams, and results as a notebook prefers them."""
    texts = []
    for output in outputs(cell):
        data = output.get("data", {})
        texts.append(output.get("text") or data.get("text/html") or data.get("text/plain", ""))
    return "".join(texts)

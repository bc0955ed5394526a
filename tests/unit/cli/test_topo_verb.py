"""`clusterkit topo` as its users meet it: answers, messages, exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.command_line import outcome
from tests.helpers.recordings import recording

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the verb in an empty folder; stdin is a terminal unless it is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("NCCL_IB_HCA", "CLUSTERKIT_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str, stdin: str | None = None) -> tuple[int, str, str]:
        stream = io.StringIO(stdin or "")
        monkeypatch.setattr(stream, "isatty", lambda: stdin is None, raising=False)
        monkeypatch.setattr(sys, "stdin", stream)
        return outcome("topo", *args)

    return run


def nvidia_smi(folder: Path, script: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def test_a_healthy_machine(run: Run) -> None:
    Path("topo.txt").write_text(recording("topo_dgxa100_12mlx5_tabs.txt"))
    code, out, err = run("topo.txt")
    assert (code, err) == (0, "")
    assert out.startswith("8 GPUs, all joined by NVLink (NV12); 12 NICs, nearest PXB\n")
    assert "GPU[4-5]  7     112-127,240-255  PXB  mlx5_6 mlx5_7\n" in out
    assert "NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9\n" in out
    assert "near no GPU: mlx5_4 mlx5_5 mlx5_10 mlx5_11" in out


@pytest.mark.parametrize(
    "name", ["v100x8_mesh_4mlx5", "8gpu_1nic_dualport", "6gpu_ansi", "mp_juwels_booster",
             "rtx6000ada_x4_4nic", "p2p_r_h100x8", "rtx2080s_blank_affinity_raw"],
)  # fmt: skip
def test_fits_a_terminal(run: Run, name: str) -> None:
    _, out, _ = run(stdin=recording(f"topo_{name}.txt"))
    assert out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_sixteen_gpus_fit(run: Run) -> None:
    cells = {(a, b): "X" if a == b else "NV18" if a // 8 == b // 8 else "SYS"
             for a in range(16) for b in range(16)}  # fmt: skip
    lines = ["\t" + "\t".join(f"GPU{n}" for n in range(16))]
    lines += [f"GPU{a}\t" + "\t".join(cells[a, b] for b in range(16)) for a in range(16)]
    code, out, _ = run(stdin="\n".join(lines))
    assert code == 0
    assert "2 NVLink islands: GPU[0-7] + GPU[8-15]" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert sum(line.startswith("GPU15") for line in out.splitlines()) == 2


def test_warnings_are_findings(run: Run) -> None:
    code, out, _ = run(stdin=recording("topo_4gpu_phb_numaid.txt"))
    assert code == 1
    assert "warning: no two GPUs" in out
    assert "scaling drops after 2-4 GPUs" in out


def test_json(run: Run) -> None:
    code, out, _ = run("--json", stdin=recording("topo_rtx6000ada_x4_4nic.txt"))
    document = json.loads(out)
    assert code == 1
    assert document["schema"] == 1
    assert document["gpus"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert document["nics"][1] == {"name": "NIC1", "device": "mlx5_1"}
    assert document["links"]["GPU0"]["GPU2"] == "SYS"
    assert document["links"]["NIC0"]["NIC1"] == "PIX"
    assert "GPU0" not in document["links"]["GPU0"]
    assert document["affinity"]["GPU3"] == {
        "nics": ["mlx5_2", "mlx5_3"], "cpus": "32-63", "numa": "1"
    }  # fmt: skip
    assert document["summary"].startswith("4 GPUs, no NVLink")
    assert len(document["warnings"]) == 2


def test_a_text_that_is_no_matrix(run: Run) -> None:
    Path("x").write_text(recording("topo_error_missing_value.txt"))
    code, out, err = run("x")
    assert (code, out) == (2, "")
    assert 'x holds no topology matrix: it says "ERROR: Option -m' in err
    assert "hint: run `nvidia-smi topo -m > topo.txt`" in err
    code, out, _ = run("--json", "x")
    assert code == 2
    assert json.loads(out)["error"]["problems"]
    assert run("absent")[0] == 2


@pytest.mark.parametrize("stdin", [None, ""])
def test_this_machine(run: Run, tmp_path: Path, stdin: str | None) -> None:
    code, _, err = run(stdin=stdin)
    assert code == 2
    assert "this machine has no nvidia-smi" in err
    (tmp_path / "matrix").write_text(recording("topo_mp_juwels_booster.txt"))
    nvidia_smi(tmp_path, f'[ "$1 $2" = "topo -m" ] || exit 3\nexec /bin/cat {tmp_path}/matrix')
    code, out, _ = run(stdin=stdin)
    assert code == 1
    assert "all traffic passes the CPU" in " ".join(out.split())  # asked for -m: nothing is hidden


def test_a_driver_that_does_not_answer(run: Run, tmp_path: Path) -> None:
    nvidia_smi(tmp_path, "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    code, _, err = run()
    assert code == 2
    assert "nvidia-smi topo -m exits 9: NVIDIA-SMI has failed" in err
    nvidia_smi(tmp_path, "echo 'No devices were found'")
    code, _, err = run()
    assert code == 2
    assert "No devices were found" in err


def test_nccl_ib_hca(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = recording("topo_dgxa100_12mlx5_tabs.txt")
    code, out, _ = run("--nccl-ib-hca", "mlx5_1", stdin=text)
    assert code == 1
    assert "NCCL_IB_HCA takes mlx5_10,mlx5_11" in out
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_1")
    assert run(stdin=text)[0] == 0  # the variable is this machine's, the text another's
    (tmp_path / "matrix").write_text(text)
    nvidia_smi(tmp_path, f"exec /bin/cat {tmp_path}/matrix")
    assert run()[0] == 1


def test_a_real_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterkit", "topo", "-"],
        input=recording("topo_gb200_4gpu.txt"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 GPUs, all joined by NVLink (NV18)\n")

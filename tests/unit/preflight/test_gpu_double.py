"""Probes and checks of GPUs from end to end, over the test double of nvidia-smi."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterkit.core.findings import Finding, Verdict
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Evidence, NodeFacts
from clusterkit.preflight.evaluate import findings_of
from clusterkit.transport.probe import PreflightJob, Reach
from clusterkit.transport.script import compose
from tests.helpers.answers import read_answer
from tests.helpers.needs import require
from tests.helpers.paths import TESTS
from tests.helpers.probe_run import SHELLS

_DOUBLES = TESTS / "doubles"
_CHECKS = [check for check in all_checks() if check.area == "GPU"]
_PROBES = {probe.name: probe for check in _CHECKS for probe in check.probes}
_JOB = PreflightJob(hosts=("n1",), gpus_per_node=8)
# dcgmi ends with 226 where a test fails
_DCGMI = """#!/bin/sh
[ "$*" = "diag -r 1 -j" ] || exit 1
echo '{"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", '
echo '"tests": [{"name": "memory",'
echo '"results": [{"entity_group": "GPU", "entity_id": 5, "status": "Fail"}]}]}]}}'
exit 226
"""
_REMAPPED = "GPU 3: Xid 63 (row remap or page retirement recorded)"


def _preflight(
    folder: Path, *, shell: tuple[str, ...], path: Path = _DOUBLES, job: PreflightJob = _JOB
) -> list[Finding]:
    require(shell[0])
    compound = compose(_PROBES.values(), job, token="t0k3n")
    env = {"PATH": f"{path}:{os.environ['PATH']}", "CLUSTERKIT_GPUS": str(folder)}
    done = subprocess.run(
        shell, input=compound.script, env=env, capture_output=True, text=True, check=True
    )
    answer = read_answer(done.stdout, compound)
    assert answer is not None
    assert answer.complete
    node = NodeFacts(name="n1", outputs=answer.outputs, reach=Reach())
    found = Evidence(job=job, nodes=(node,))
    return [finding for check in _CHECKS for finding in findings_of(check, found)]


def _bad(findings: list[Finding]) -> dict[str, tuple[str, str]]:
    fine = {Verdict.PASS, Verdict.SKIP}
    return {f.id: (f.verdict, f.summary) for f in findings if f.verdict not in fine}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_healthy_machine(shell: tuple[str, ...]) -> None:
    found = _preflight(_DOUBLES / "gpus" / "healthy8", shell=shell)
    assert _bad(found) == {}
    passed = {f.id for f in found if f.verdict is Verdict.PASS}
    assert passed >= {
        *("GPU001", "GPU002", "GPU003", "GPU004", "GPU008", "GPU009", "GPU011", "GPU013"),
        *("GPU014", "GPU015", "GPU016", "GPU017", "GPU018", "GPU019", "GPU020", "GPU021"),
        "GPU026",
    }
    (version,) = [f for f in found if f.id == "GPU004"]
    assert version.summary == "driver version 550.127.08 (CUDA 12.4)"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_sick_machine(shell: tuple[str, ...]) -> None:
    bad = _bad(_preflight(_DOUBLES / "gpus" / "sick8", shell=shell))
    if shell[0] == "busybox":  # its own dmesg goes before the one on PATH
        bad.setdefault("GPU011", ("warn", _REMAPPED))
    assert bad == {
        "GPU008": ("fail", "GPU 0: uncorrected ECC errors since the driver was loaded: 2"),
        "GPU009": ("fail", "GPU 3: a row remap is pending"),
        "GPU011": ("warn", _REMAPPED),
        "GPU013": ("fail", "GPU 5: hardware thermal slowdown"),
        "GPU014": ("fail", "GPU 5: 93 C, at its slowdown limit"),
        "GPU017": ("fail", "GPU 1: 1 of 18 NVLinks down (link 7)"),
    }


def _variant(tmp_path: Path) -> Path:
    return shutil.copytree(_DOUBLES / "gpus" / "sick8", tmp_path / "gpus")


def test_a_driver_that_knows_no_new_columns(tmp_path: Path) -> None:
    folder = _variant(tmp_path)
    table = folder / "gpus.csv"
    text = table.read_text(encoding="utf-8")
    for new, old in (
        ("clocks_event_reasons", "clocks_throttle_reasons"),
        ("fabric.", "xfabric."),
        ("remapped_rows.", "xremapped_rows."),
        ("temperature.gpu.tlimit", "xtlimit"),
    ):
        text = text.replace(new, old)
    table.write_text(text, encoding="utf-8")
    bad = _bad(_preflight(folder, shell=("sh",)))
    assert {"GPU008", "GPU009", "GPU013", "GPU014"} <= set(bad)  # rows and limits come from -q


def test_a_driver_that_knows_no_row_remapper(tmp_path: Path) -> None:
    here = tmp_path / "bin"
    here.mkdir()
    smi = here / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\ncase $* in *ROW_REMAPPER*) echo 'Invalid combination'; exit 2 ;; esac\n"
        f'exec {_DOUBLES / "nvidia-smi"} "$@"\n',
        encoding="utf-8",
    )
    smi.chmod(0o755)
    bad = _bad(_preflight(_DOUBLES / "gpus" / "sick8", shell=("sh",), path=here))
    assert bad["GPU009"] == ("fail", "GPU 3: a row remap is pending")
    assert bad["GPU014"] == ("fail", "GPU 5: 93 C, at its slowdown limit")


def test_a_query_that_fails_altogether_falls_back_to_the_long_text(tmp_path: Path) -> None:
    folder = _variant(tmp_path)
    (folder / "gpus.csv").write_text("nothing\n", encoding="utf-8")
    (folder / "list.txt").write_text(
        "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n" for i in range(8)),
        encoding="utf-8",
    )
    bad = _bad(_preflight(folder, shell=("sh",)))
    assert set(bad) == {"GPU008", "GPU009", "GPU011", "GPU013", "GPU014", "GPU017"}


def test_a_driver_that_does_not_run_on_a_machine_without_gpus_is_skipped(tmp_path: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n", encoding="utf-8")
    smi.chmod(0o755)
    found = _preflight(tmp_path, shell=("sh",), path=tmp_path)
    assert _bad(found) == {}


def test_a_diagnosis_runs_where_it_was_asked_for(tmp_path: Path) -> None:
    dcgmi = tmp_path / "dcgmi"
    dcgmi.write_text(_DCGMI, encoding="utf-8")
    dcgmi.chmod(0o755)
    (tmp_path / "nvidia-smi").symlink_to(_DOUBLES / "nvidia-smi")
    job = replace(_JOB, env={"CLUSTERKIT_DCGM_DIAG": "1"})
    folder = _DOUBLES / "gpus" / "healthy8"
    asked = _bad(_preflight(folder, shell=("sh",), path=tmp_path, job=job))
    assert asked == {"GPU022": ("fail", "dcgmi diag: memory GPU 5 Fail")}
    assert _bad(_preflight(folder, shell=("sh",), path=tmp_path)) == {}


def test_processes_come_with_their_owner(tmp_path: Path) -> None:
    folder = _variant(tmp_path)
    (folder / "processes.csv").write_text(
        f"pid, process_name, used_memory\n{os.getpid()}, python, 4096\n", encoding="utf-8"
    )
    (finding,) = [f for f in _preflight(folder, shell=("sh",)) if f.id == "GPU020"]
    assert finding.verdict is Verdict.WARN
    assert finding.summary == f"1 process on the GPUs, of {Path('/proc/self').owner()}"


def test_the_double_answers_as_nvidia_smi_does() -> None:
    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_DOUBLES / "nvidia-smi", *arguments], capture_output=True, text=True, check=False
        )

    table = ask("--query-gpu=temperature.gpu,index,memory.total", "--format=csv").stdout
    assert table.splitlines()[:2] == [
        "temperature.gpu, index, memory.total [MiB]",
        "31, 0, 81559 MiB",
    ]
    bare = ask("--query-gpu=index,memory.total", "--format=csv,noheader,nounits").stdout
    assert bare.splitlines()[0] == "0, 81559"
    wrong = ask("--query-gpu=index,nonsense", "--format=csv")
    assert (wrong.returncode, "nonsense" in wrong.stdout) == (2, True)
    assert len(ask("-L").stdout.splitlines()) == 8
    assert "NV18" in ask("topo", "-m").stdout
    assert '"fabric.state"' in ask("--help-query-gpu").stdout
    assert ask("--query-compute-apps=pid,used_memory", "--format=csv,noheader").stdout == ""

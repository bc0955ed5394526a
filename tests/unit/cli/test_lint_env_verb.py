"""`clusterkit lint-env` as its users meet it: answers, messages, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterkit.config.platforms import platform_names
from tests.helpers.command_line import typed_in
from tests.helpers.paths import ROOT


@pytest.fixture(autouse=True)
def _a_bare_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith("NCCL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return typed_in(cwd, "lint-env", *words, **environment)


def piped(text: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterkit", "lint-env", "-", *words],
        cwd=cwd, input=text, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/sh\n\nexport NCCL_IB_DISABLE=true\n")
    done = run("train.sh", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == (
        "train.sh:3: NCCL111 fail NCCL_IB_DISABLE=true\n"
        "    not a number: it is read as 0\n"
        "    hint: write 1\n"
        "\n"
        "1 variable looked at: 1 fail\n"
    )


def test_line_ends_of_windows_reach_the_lint(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_bytes(b"#!/bin/sh\r\nexport NCCL_IB_SL=1\r\n")
    done = run("train.sh", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("train.sh:2: NCCL140 fail NCCL_IB_SL=1\n")


def test_json_from_stdin(tmp_path: Path) -> None:
    done = piped("NCCL_GDR_LEVEL=4\nNCCL_IB_RETRY_CNT=7\n", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"]) == (1, 1)
    first, second = document["findings"]
    assert first == {
        "id": "NCCL101", "rule": "misspelt-name", "name": "NCCL_GDR_LEVEL", "value": "4",
        "source": "<stdin>", "line": 1, "verdict": "fail", "summary": "no release reads this name",
        "hint": "did you mean NCCL_NET_GDR_LEVEL?",
    }  # fmt: skip
    assert second["verdict"] == "pass"


def test_notes_alone_are_clean(tmp_path: Path) -> None:
    done = piped("NCCL_NET_FORCE_FLUSH=1\n", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 only worth knowing (--verbose)" in done.stdout
    assert "NCCL106 pass" in piped("NCCL_NET_FORCE_FLUSH=1\n", "-v", cwd=tmp_path).stdout


def test_this_shell_and_its_files(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_IB_SL=2\n")
    done = run(cwd=tmp_path, NCCL_IB_SL="1", NCCL_SOCKET_IFNAME="=eth0")
    assert done.returncode == 1
    assert "~/.nccl.conf:1: NCCL139 warn NCCL_IB_SL=2" in done.stdout


def test_what_the_site_allows(tmp_path: Path) -> None:
    (tmp_path / "clusterkit.yaml").write_text(
        "clusters:\n  a: {kind: slurm, allowed_env: [NCCL_OURS_*]}\n"
    )
    assert piped("NCCL_OURS_X=1\n", cwd=tmp_path).returncode == 1
    assert piped("NCCL_OURS_X=1\n", "--cluster", "a", cwd=tmp_path).returncode == 0
    assert piped("NCCL_OURS_X=1\n", "--allow", "NCCL_OURS_X", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.sh"], "cannot read missing.sh"),
        (["-", "--as", "xml"], "there is no format 'xml'"),
        (["--as", "conf"], "--as is for a FILE"),
        (["-", "--cluster", "nope"], "nope"),
    ],
)
def test_what_cannot_be_done(words: list[str], message: str, tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "train.py",
            "import os\nos.environ['NCCL_SOKET_IFNAME'] = 'eth0'\n",
            "no such variable found in train.py; it was read as shell (--as env-file|",
        ),
        ("empty.env", "", "no such variable found in empty.env; it was read as env-file"),
        ("job.yaml", "a: b\n", "no such variable found in job.yaml; it was read as yaml"),
    ],
)
def test_nothing_found_is_not_nothing_wrong(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    done = run(name, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(said)
    assert "nothing wrong" not in done.stdout


def test_a_shell_that_sets_none_says_so(tmp_path: Path) -> None:
    assert run(cwd=tmp_path).stdout == "no such variable is set here, nor in a nccl.conf\n"


def test_what_was_not_read_as_meant_is_told(tmp_path: Path) -> None:
    script = 'export NCCL_DEBUG="WARN\nexport NCCL_SOKET_IFNAME=eth0\n'
    done = piped(script, cwd=tmp_path)
    assert done.returncode == 1
    assert "<stdin>:2: NCCL101 fail NCCL_SOKET_IFNAME=eth0" in done.stdout
    assert "warning: <stdin>: line 1: no end of a quote" in done.stderr
    document = json.loads(piped(script, "--json", cwd=tmp_path).stdout)
    assert [note.startswith("<stdin>: line 1: ") for note in document["notes"]] == [True]


# Written by us after the files that vendors tell their users to source, with the values of those.
VENDORS = {
    "aws-efa": """
        FI_EFA_USE_HUGE_PAGE=0 FI_PROVIDER=efa NCCL_SOCKET_IFNAME=^docker,lo,veth""",
    "aws-hyperpod": """
        FI_PROVIDER=efa NCCL_SOCKET_IFNAME=^docker,lo,veth,eth""",
    "gcp-tcpx": """
        NCCL_NET=GPUDirectTCPX_v7 NCCL_SOCKET_IFNAME=enp0s12 NCCL_CROSS_NIC=0 NCCL_ALGO=Ring
        NCCL_PROTO=Simple NCCL_NSOCKS_PERTHREAD=4 NCCL_SOCKET_NTHREADS=1 NCCL_BUFFSIZE=4194304
        NCCL_DYNAMIC_CHUNK_SIZE=524288 NCCL_P2P_NET_CHUNKSIZE=524288
        NCCL_P2P_PCI_CHUNKSIZE=524288 NCCL_P2P_NVL_CHUNKSIZE=1048576 NCCL_P2P_PXN_LEVEL=0
        NCCL_NET_GDR_LEVEL=PIX NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=enp6s0,enp12s0,enp134s0,enp140s0
        NCCL_GPUDIRECTTCPX_CTRL_DEV=enp0s12 NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx-7""",
    "gcp-tcpxo": """
        NCCL_LIB_DIR=/var/lib/tcpxo/lib64 NCCL_FASTRAK_CTRL_DEV=enp0s12
        NCCL_FASTRAK_IFNAME=enp6s0,enp7s0,enp13s0,enp14s0 NCCL_SOCKET_IFNAME=enp0s12
        NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY=/dev/aperture_devices""",
    "gcp-gib": """
        NCCL_NET=gIB NCCL_SOCKET_IFNAME=enp0s19,enp192s20 NCCL_CROSS_NIC=0 NCCL_IB_TC=52
        NCCL_NET_GDR_LEVEL=PIX NCCL_IB_GID_INDEX=3 NCCL_IB_FIFO_TC=84 NCCL_IB_ADAPTIVE_ROUTING=1
        NCCL_IB_QPS_PER_CONNECTION=4 NCCL_P2P_NET_CHUNKSIZE=131072 NCCL_NVLS_CHUNKSIZE=524288
        NCCL_TUNER_CONFIG_PATH=/usr/local/gib/configs/tuner_config_a4.txtpb
        NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE=/usr/local/gib/configs/guest_config.txtpb""",
    "azure-nd": """
        NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml NCCL_SOCKET_IFNAME=eth0 UCX_TLS=rc
        NCCL_IGNORE_CPU_AFFINITY=1 NCCL_PXN_DISABLE=1 NCCL_MIN_NCHANNELS=32 NCCL_COLLNET_ENABLE=1
        NCCL_P2P_NET_CHUNKSIZE=2097152 NCCL_IB_PCI_RELAXED_ORDERING=1 UCX_NET_DEVICES=mlx5_ib0:1
        NCCL_IB_QPS_PER_CONNECTION=4 CUDA_DEVICE_ORDER=PCI_BUS_ID NCCL_DEBUG=WARN""",
    "azure-gb": """
        NCCL_MNNVL_ENABLE=1 NCCL_NVLS_ENABLE=1 NCCL_SHM_DISABLE=1 NCCL_DMABUF_ENABLE=1
        NCCL_P2P_DISABLE=0 NCCL_IB_DISABLE=0 NCCL_IB_SL=1 NCCL_NET_GDR_LEVEL=PHB
        NCCL_NET_GDR_C2C=1 NCCL_SOCKET_IFNAME=eth0 NCCL_P2P_NET_CHUNKSIZE=2097152
        NCCL_IB_QPS_PER_CONNECTION=4""",
    "oci-roce": """
        NCCL_CUMEM_ENABLE=0 NCCL_IB_SPLIT_DATA_ON_QPS=0 NCCL_IB_QPS_PER_CONNECTION=1
        NCCL_IB_GID_INDEX=3 NCCL_IB_TC=41 NCCL_IB_SL=0 NCCL_IB_TIMEOUT=22 NCCL_CROSS_NIC=2
        NCCL_NET_PLUGIN=/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so
        NCCL_BUFFSIZE=16777216 NCCL_SOCKET_IFNAME=eth0 NCCL_IGNORE_CPU_AFFINITY=1
        NCCL_IB_HCA==mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9""",
}


@pytest.mark.parametrize("platform", VENDORS)
def test_what_a_vendor_has_its_users_set_is_clean_on_its_platform(
    tmp_path: Path, platform: str
) -> None:
    assert {*VENDORS, "plain"} == {*platform_names()}
    settings = VENDORS[platform].split()
    (tmp_path / "vendor.sh").write_text("".join(f"export {one}\n" for one in settings))
    done = run("vendor.sh", cwd=tmp_path, CLUSTERKIT_PLATFORM=platform)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    # What is a fault elsewhere stays one there.
    (tmp_path / "vendor.sh").write_text("export NCCL_IB_TIMEUOT=22 NCCL_P2P_DISABLE=1\n")
    assert run("vendor.sh", cwd=tmp_path, CLUSTERKIT_PLATFORM=platform).returncode == 1


def test_what_a_platform_sets_is_a_fault_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "vendor.sh").write_text("export NCCL_SHM_DISABLE=1\n")
    assert run("vendor.sh", cwd=tmp_path, CLUSTERKIT_PLATFORM="plain").returncode == 1

"""The lint of NCCL variables: what it finds, what it leaves alone, and that nothing breaks it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.preflight.env_lint.lint import RULES, LintFinding, lint
from clusterkit.preflight.env_lint.rules.base import strtoll
from clusterkit.preflight.env_lint.setting import Format
from clusterkit.preflight.env_lint.sources import from_environment, guess_format, read_source
from clusterkit.preflight.env_lint.variables import Kind, find_variable
from tests.helpers.growth import growth
from tests.helpers.paths import ROOT
from tests.helpers.recordings import recording


def of(text: str, name: str = "x.sh") -> tuple[LintFinding, ...]:
    return lint([read_source(text, name)])


def ids(text: str, name: str = "x.sh") -> list[str]:
    """Ids of what is warned of or failed, in order."""
    return [f.id for f in of(text, name) if f.verdict in {"warn", "fail"}]


def one(assignment: str) -> LintFinding:
    """Return the only finding about an environment of one variable."""
    name, _, value = assignment.partition("=")
    (finding,) = lint([from_environment({name: value})])
    return finding


def test_recording_of_the_widely_copied_script() -> None:
    found = of(recording("env_hunyuan3d_train_deepspeed.sh"))
    said = {(f.name, f.id) for f in found}
    assert said >= {
        ("NCCL_CHECK_DISABLE", "NCCL101"),
        ("NCCL_LL_THRESHOLD", "NCCL103"),
        ("NCCL_IB_CUDA_SUPPORT", "NCCL103"),
        ("NCCL_IB_HCA", "NCCL122"),
        ("NCCL_IB_HCA", "NCCL123"),
        ("NCCL_NET_GDR_LEVEL", "NCCL115"),
        ("NCCL_COLLNET_ENABLE", "NCCL119"),
        ("NCCL_P2P_DISABLE", "NCCL119"),
        ("NCCL_NVLS_ENABLE", "NCCL162"),
    }
    typo = next(f for f in found if f.name == "NCCL_CHECK_DISABLE")
    assert "NCCL_CHECKS_DISABLE" in typo.hint
    assert "dead too" in typo.hint
    assert "2.4.8" in next(f.summary for f in found if f.name == "NCCL_LL_THRESHOLD")
    twice = next(f for f in found if f.id == "NCCL122")
    assert (twice.line, twice.summary) == (7, "named twice: mlx5_2:1")
    levels = {f.name: f.hint for f in found if f.id == "NCCL115"}
    assert levels == {"NCCL_NET_GDR_LEVEL": "write PXB"}
    assert not [f for f in found if f.id == "NCCL131"]


def test_recording_of_the_misspelt_level() -> None:
    found = {(f.name, f.id, f.verdict.value) for f in of(recording("env_gdr_level_typo.sh"))}
    assert found == {
        ("NCCL_GDR_LEVEL", "NCCL101", "fail"),
        ("NCCL_NVLS_ENABLE", "NCCL162", "warn"),
        ("NCCL_IB_RETRY_CNT", "NCCL119", "pass"),
    }  # neither the blank behind NCCL_IB_TIMEOUT=22 nor the list that starts with ^=


@pytest.mark.parametrize(
    ("assignment", "id_", "words"),
    [
        ("NCCL_SOCKET_IFNAMES==eth0", "NCCL101", "NCCL_SOCKET_IFNAME?"),
        ("NCCL_IB_HCAS==mlx5_0", "NCCL101", "NCCL_IB_HCA?"),
        ("NCLL_DEBUG=WARN", "NCCL101", "NCCL_DEBUG?"),
        ("nccl_debug=WARN", "NCCL101", "NCCL_DEBUG?"),
        ("TORCH_NCCL_BLOKING_WAIT=1", "NCCL101", "TORCH_NCCL_BLOCKING_WAIT?"),
        ("NCCL_OFI_PROTOCOL=RDMA", "NCCL101", "OFI_NCCL_PROTOCOL?"),
        ("NCCL_OUR_OWN_THING=1", "NCCL102", "allowed_env"),
        ("NCCL_TREE_THRESHOLD=0", "NCCL103", "NCCL_ALGO"),
        ("NCCL_MAX_NCHANNELS=8", "NCCL104", "NCCL_MAX_CTAS"),
        ("NCCL_ASYNC_ERROR_HANDLING=1", "NCCL105", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_NET_FORCE_FLUSH=1", "NCCL106", "not documented"),
        ("NCCL_FASTRAK_IFNAME=eth1,eth2", "NCCL107", "FasTrak"),
        ("NCCL_BOOTSTRAP_BIDIR_ALLGATHER=1", "NCCL107", "RCCL"),
        ("NCCL_IB_DISABLE=true", "NCCL111", "read as 0"),
        ("NCCL_IB_TIMEOUT=abc", "NCCL111", "read as 0"),
        ("NCCL_IB_QPS_PER_CONNECTION=4x", "NCCL111", "read as 4"),
        ("NCCL_IB_TC=0106", "NCCL112", "read as 70"),
        ("NCCL_IB_SL=16", "NCCL113", "0..15"),
        ("NCCL_P2P_DISABLE=2", "NCCL113", "0..1"),
        ("NCCL_P2P_LEVEL=nvl", "NCCL114", "write NVL"),
        ("NCCL_NET_GDR_LEVEL=NODE", "NCCL114", "PHB"),
        ("NCCL_SOCKET_FAMILY=ipv4", "NCCL114", "AF_INET"),
        ("NCCL_DEBUG=VERBOSE", "NCCL114", "WARN"),
        ("NCCL_P2P_LEVEL=3", "NCCL115", "write PHB"),
        ("TORCH_NCCL_NAN_CHECK=on", "NCCL117", "write 1 or 0"),
        ("NCCL_DEBUG=", "NCCL118", "not set"),
        ("NCCL_IB_RETRY_CNT=7", "NCCL119", "default"),
        ("NCCL_SOCKET_IFNAME=eth0, ib0", "NCCL121", "eth0,ib0"),
        ("NCCL_IB_HCA==mlx5_0,mlx5_0", "NCCL122", "mlx5_0"),
        ("NCCL_IB_HCA=mlx5_1", "NCCL123", "=mlx5_1"),
        ("NCCL_IB_HCA=^mlx5_1:1", "NCCL123", "^=mlx5_1:1"),
        ("GLOO_SOCKET_IFNAME==eth0", "NCCL124", "NCCL's notation"),
        ("GLOO_SOCKET_IFNAME=^docker0", "NCCL124", "NCCL's notation"),
        ("UCX_NET_DEVICES=mlx5_0", "NCCL125", "mlx5_0:1"),
        ("NCCL_SOCKET_IFNAME=lo", "NCCL126", "no other machine"),
        ("NCCL_DEBUG=INFO", "NCCL161", "left on"),
        ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "NCCL161", "left on"),
        ("UCX_LOG_LEVEL=DEBUG", "NCCL161", "left on"),
        ("NCCL_TOPO_DUMP_FILE=/tmp/x.xml", "NCCL161", "left on"),
        ("NCCL_SHM_DISABLE=1", "NCCL162", "shared memory"),
        ("NCCL_P2P_LEVEL=LOC", "NCCL162", "peer-to-peer"),
        ("NCCL_ALGO=Ring", "NCCL163", "NCCL's own choice"),
        ("NCCL_LAUNCH_MODE=group", "NCCL163", "NCCL's own choice"),
        ("NCCL_SHARP_GROUP_SIZE_THRESH=8", "NCCL107", "SHARP"),
        ("NCCL_AVOID_RECORD_STREAMS=1", "NCCL105", "since 2.7 it is the default"),
        ("OFI_NCCL_PROTOKOLL=RDMA", "NCCL101", "OFI_NCCL_PROTOCOL?"),
        ("OFI_NCCL_OUR_OWN=1", "NCCL102", "aws-ofi-nccl up to 1.21"),
        ("OFI_NCCL_TOPO_FILE_WRITE_ENABLE=1", "NCCL103", "no aws-ofi-nccl after 1.10.0"),
        ("OFI_NCCL_RDMA_MIN_POSTED_BOUNCE_BUFFERS=9", "NCCL103", "refuse to start"),
        ("OFI_NCCL_PROTOCOL=TCP", "NCCL114", "refuses to start"),
        ("OFI_NCCL_GDR_FLUSH_DISABLE=yes", "NCCL117", "refuses to start"),
        ("RDMAV_FORK_SAFE=1", "NCCL165", "every registration"),
        ("IBV_FORK_SAFE=yes", "NCCL165", "every registration"),
        ("RDMAV_HUGEPAGES_SAFE=0", "NCCL165", "whatever the value is"),
        ("RDMAV_HUGEPAGE_SAFE=1", "NCCL101", "RDMAV_HUGEPAGES_SAFE?"),
        ("RDMAV_SOMETHING=1", "NCCL102", "rdma-core"),
        ("HOROVOD_FUSION_TRESHOLD=67108864", "NCCL101", "HOROVOD_FUSION_THRESHOLD?"),
        ("HOROVOD_AUTOTUNE=true", "NCCL111", "read as 0"),
        ("HOROVOD_CPU_OPERATIONS=NCCL", "NCCL114", "Horovod stops with an error"),
        ("FI_EFA_FORK_SAFE=1", "NCCL164", "5.13"),
        ("FI_EFA_USE_DEVICE_RDMA=True", "NCCL164", "libfabric 1.18"),
        ("FI_EFA_USE_DEVICE_RDMA=0", "NCCL162", "RDMA of EFA adapters"),
        ("FI_EFA_ENABLE_SHM_TRANSFER=1", "NCCL164", "the default"),
        ("FI_EFA_SET_CUDA_SYNC_MEMOPS=0", "NCCL103", "no libfabric after 1.19"),
        ("FI_EFA_MTU_SIZE=4096", "NCCL103", "abort the process"),
        ("FI_EFA_TX_MIN_CREDITS=0", "NCCL113", "1.."),
        ("FI_EFA_USE_HUGE_PAGES=0", "NCCL101", "FI_EFA_USE_HUGE_PAGE?"),
        ("FI_EFA_NO_SUCH_THING=1", "NCCL102", "libfabric up to 2.6"),
        ("FI_EFA_TRACK_MR=maybe", "NCCL117", "libfabric ignores it"),
        ("FI_LOG_LEVEL=info", "NCCL161", "left on"),
        ("NCCL_SOCKET_IFNAME=mlx5_0,mlx5_2", "NCCL127", "is an HCA"),
        ("NCCL_IB_HCA=ib0", "NCCL127", "ibv_devices"),
        ("TORCH_DISTRIBUTED_DEBUG=LOUD", "NCCL114", "PyTorch stops"),
    ],
)
def test_rules_of_one_variable(assignment: str, id_: str, words: str) -> None:
    finding = one(assignment)
    assert finding.id == id_
    assert words in f"{finding.summary} {finding.hint}"


@pytest.mark.parametrize(
    "assignment",
    [
        "NCCL_SOCKET_IFNAME==eth0",
        "NCCL_SOCKET_IFNAME=^docker0,lo",
        "NCCL_SOCKET_IFNAME=ib",
        "NCCL_IB_HCA==mlx5_1:1,mlx5_2:1",
        "NCCL_IB_TC=106",
        "NCCL_IB_TC=0x6A",
        "NCCL_IB_TIMEOUT=22 ",
        "NCCL_DEBUG=warn",
        "NCCL_DEBUG_FILE=",
        "UCX_SOMETHING_NEW=1",
        "FI_EFA_USE_HUGE_PAGE=0",
        "FI_EFA_FORK_SAFE=0",
        "FI_TCP_IFACE=eth0",
        "RDMAV_FORK_SAFE=0",
        "HOROVOD_GPU_OPERATIONS=NCCL",
        "HOROVOD_CONTROLLER=gloo",
        "HOROVOD_CYCLE_TIME=3.5",
        "HOROVOD_OF_A_SITE=1",
        "UCX_AFFINITY=0-7",
        "UCCL_SOCKET_IFNAME=eth0",
        "HCCL_SOCKET_IFNAME=eth0",
        "CCL_DEBUG=INFO",
        "CNCL_DEBUG=INFO",
        "NCCLX_DEBUG=INFO",
        "NCCI_HOME=/opt/ncci",
        "NCCL_SOCKET_IFNAME=hsn0,hsn1",
        "NCCL_IB_HCA=cxi0,cxi1",
        "NCCL_LIBRARY_DIR=/opt/nccl/lib",
        "NCCL_INC_PATH=/opt/nccl/include",
        "NCCL_SOCKET_IFNAME=cni0",
        "OFI_NCCL_PROTOCOL=rdma",
        "OFI_NCCL_GDR_FLUSH_DISABLE=True",
        "OFI_NCCL_DISABLE_DMABUF=2",
        "NCCL_SHARP_DISABLE=1",
        "NCCL_IBEXT_DISABLE=1",
        "NCCL_UCX_TLS=dc,cuda_copy",
        "NCCL_TUNER_CONFIG_PATH=/usr/local/gib/configs/tuner_config.txtpb",
        "NCCL_VERSION=2.27.3-1",
        "NCCL_TESTS_SPLIT_MASK=0x7",
        "NCCL_HOME=/opt/nccl",
        "NCCL_LAUNCH_MODE=parallel",
        "NCCL_PROTO=^LL128",
        "NCCL_MIN_NCHANNELS=112",
        "NCCL_IB_HCA=mlx5",
        "NCCL_IB_HCA=mlx5_2,mlx5_3",
        "NCCL_SOCKET_IFNAME=enp0s12",
        "NCCL_SOCKET_IFNAME=eno8303",
        "TORCH_DISTRIBUTED_DEBUG=off",
        "PATH=/bin",
        "NCCL_BUFFSIZE=4194304",
    ],
)
def test_what_is_right_is_left_alone(assignment: str) -> None:
    name, _, value = assignment.partition("=")
    found = lint([from_environment({name: value})])
    assert [f for f in found if f.verdict != "pass"] == []


def test_the_limit_of_a_collective_is_no_variable() -> None:
    found = one("NCCL_TIMEOUT=1800")
    assert (found.id, "init_process_group(timeout=...)" in found.hint) == ("NCCL101", True)


def test_a_wrong_word_in_a_list_takes_the_list_with_it() -> None:
    found = {f.id: f for f in of("export NCCL_DEBUG_SUBSYS=INIT,VERSION")}
    assert "VERSION; it is ignored, since 2.30 with the whole list" in found["NCCL114"].summary
    assert found["NCCL114"].verdict == "warn"  # it chooses what is logged


def test_a_wrong_algorithm_fails() -> None:
    assert "NCCL116" in ids("export NCCL_ALGO=Rings")
    assert "NCCL116" not in ids('export NCCL_ALGO="allreduce:tree,ring;allgather:ring"')


@pytest.mark.parametrize(
    ("settings", "id_"),
    [
        ("NCCL_IB_GID_INDEX=3 NCCL_IB_ROCE_VERSION_NUM=2", "NCCL141"),
        ("NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=NET", "NCCL142"),
        ("NCCL_DEBUG=WARN NCCL_DEBUG_FILE=/tmp/nccl.log", "NCCL143"),
        ("NCCL_OOB_NET_IFNAME==eth0", "NCCL144"),
        ("NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8", "NCCL145"),
        ("NCCL_MIN_CTAS=16 NCCL_MAX_CTAS=8", "NCCL146"),
        ("NCCL_IB_HCA==mlx5_0 NCCL_NET=Socket", "NCCL147"),
        ("NCCL_NET=ofi NCCL_NET_PLUGIN=none", "NCCL148"),
        ("NCCL_MNNVL_ENABLE=1 NCCL_CUMEM_ENABLE=0", "NCCL149"),
        ("NCCL_COLLNET_ENABLE=1 NCCL_NET_PLUGIN=none", "NCCL150"),
        ("NCCL_GRAPH_MIXING_SUPPORT=1 NCCL_GRAPH_STREAM_ORDERING=0", "NCCL151"),
        ("NCCL_IB_AR_THRESHOLD=8388608", "NCCL152"),
        ("NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=1", "NCCL153"),
        ("TORCH_NCCL_BLOCKING_WAIT=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "NCCL154"),
        ("CUDA_VISIBLE_DEVICES=0,1 HIP_VISIBLE_DEVICES=0", "NCCL155"),
    ],
)
def test_conflicts(settings: str, id_: str) -> None:
    assert ids(f"export {settings}") == [id_]


@pytest.mark.parametrize(
    "device",
    ["NCCL_NET=IB NCCL_OOB_NET_IFNAME==mlx5_1", "NCCL_NET=Socket NCCL_OOB_NET_IFNAME=ens1f0"],
)
def test_the_device_of_out_of_band_traffic_is_one_of_the_network(device: str) -> None:
    assert ids(f"export NCCL_OOB_NET_ENABLE=1 {device}") == []


def test_huge_pages_do_not_go_with_support_for_fork() -> None:
    assert "NCCL156" in ids("export FI_EFA_USE_HUGE_PAGE=1 FI_EFA_FORK_SAFE=1")
    for value in ("0", "01", "0x1"):  # libfabric reads words, and a number for none of these
        assert "NCCL156" not in ids(f"export FI_EFA_USE_HUGE_PAGE={value} FI_EFA_FORK_SAFE=1")


def test_branches_that_exclude_each_other_do_not_conflict() -> None:
    script = """\
if [ "$NET" = ib ]; then
  export NCCL_IB_HCA==mlx5_0
else
  export NCCL_NET=Socket
fi
case $X in
  a) export NCCL_IB_GID_INDEX=3 ;;
  b) export NCCL_IB_ROCE_VERSION_NUM=2 ;;
esac
"""
    assert ids(script) == []
    assert ids(script + "export NCCL_NET=Socket\n") == ["NCCL147"]


def test_what_reaches_no_process() -> None:
    assert ids("NCCL_IB_SL=1\ntorchrun x.py\n") == ["NCCL131"]
    assert ids("NCCL_IB_SL=1 torchrun x.py\n") == []
    assert ids("NCCL_IB_SL=1\nexport NCCL_IB_SL\n") == []
    assert ids("set -a\nNCCL_IB_SL=1\n") == []
    assert ids("NCCL_IB_SL=1\nmpirun -x NCCL_IB_SL=$NCCL_IB_SL x\n") == []
    assert ids("declare -x NCCL_IB_SL=1\n") == []
    assert ids('NCCL_IB_SL=1\nfor n in NCCL_IB_SL; do echo -x "$n=${!n}"; done\n') == []
    assert ids("NCCL_IB_SL=1\nmpirun -x NCCL_IB_SL x\n") == ["NCCL131"]
    (maybe,) = of("source ./common.sh\nNCCL_IB_SL=1\n")
    assert (maybe.id, maybe.verdict) == ("NCCL131", "warn")
    (surely,) = of("source venv/bin/activate\nNCCL_IB_SL=1\n")
    assert (surely.id, surely.verdict) == ("NCCL131", "fail")
    assert ids("export NCCL_IB_SL = 1\n") == ["NCCL133"]
    assert ids("NCCL_IB_SL = 1\n") == ["NCCL133"]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        # Names that nobody else has to know.
        ('export NCCL_TIMEOUT=1800\ntimeout "${NCCL_TIMEOUT}" torchrun x.py\n', []),
        ("export NCCL_TIMEOUT=9\npython - <<E\nos.environ['NCCL_TIMEOUT']\nE\n", []),
        ("NCCL_WORLD=${NCCL_WORLD:-8}\n", []),
        ("export NCCL_OURS=${NCCL_OURS:-8}\n", []),
        ("export NCCL_IFNAME=eth0\nmpirun -x NCCL_SOCKET_IFNAME=$NCCL_IFNAME x\n", []),
        ("UCX_AFFINITY=0-7\ncat > wrap <<'E'\nexec taskset -c $UCX_AFFINITY x\nE\n", []),
        ("nccl_version=2.18\nnccl_home=/opt/nccl\n", []),
        ("FROM x\nARG NCCL_COMMIT_ID=4365\nENV NCCL_VERSION=2.25\n", []),
        # What shows a name, or hands it on as it is, does not read it.
        ("export NCCL_TIMEOUT=1800\ntorchrun x.py\n", ["NCCL101"]),
        ("export NCCL_IB_TIMOUT=22\necho $NCCL_IB_TIMOUT\n", ["NCCL101"]),
        ("export NCCL_IB_TIMOUT=${NCCL_IB_TIMOUT:-22}\n", ["NCCL101"]),
        ("docker run -e NCCL_IB_TIMOUT=$NCCL_IB_TIMOUT x\n", ["NCCL101"]),
    ],
)
def test_names_that_a_script_reads_itself_are_its_own(script: str, found: list[str]) -> None:
    assert ids(script) == found


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("export NCCL_DEBUG=INFO NCCL_ALGO=Ring\n./all_reduce_perf -b 8\n", []),
        ("export NCCL_ALGO=Ring\n./all_reduce_perf -b 8\ntorchrun train.py\n", ["NCCL163"]),
        ("export NCCL_ALGO=Ring\ntorchrun x.py --deterministic-mode\n", []),
        ("export NCCL_BUFFSIZE=8388608\ntorchrun x.py --deterministic-mode\n", ["NCCL163"]),
        ("export NCCL_FASTRAK_IFNAME=eth1 NCCL_PROTO=Simple NCCL_NVLS_ENABLE=0\n", []),
        ("export NCCL_PROTO=Simple NCCL_NVLS_ENABLE=0\n", ["NCCL162", "NCCL163"]),
        ("export MASTER_ADDR=127.0.0.1\nexport NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1\n", []),
        ("#SBATCH --nodes=2\nexport NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1\n",
         ["NCCL126", "NCCL162"]),
        ("#SBATCH --nodes=1\nexport NCCL_IB_DISABLE=1\n", []),
        ("NCCL_IB_DISABLE=1 torchrun --nnodes 1 --master_addr 127.0.0.1 x.py\n", []),
        ("NCCL_IB_DISABLE=1 torchrun --nnodes 16 --master_addr $HEAD x.py\n", ["NCCL162"]),
        ("export RCCL_MSCCL_ENABLE=0 NCCL_PXN_DISABLE=1\n", []),
        ("export NCCL_PXN_DISABLE=1\n", ["NCCL162"]),
    ],
)  # fmt: skip
def test_what_a_script_runs_tells_what_is_meant(script: str, found: list[str]) -> None:
    assert sorted(ids(script)) == found


def test_the_name_of_a_file_tells_whose_gpus_it_is_for() -> None:
    text = "export NCCL_NVLS_ENABLE=0\n"
    assert ids(text, "config_MI325X_1x8.sh") == []
    assert ids(text, "config_H100_1x8.sh") == ["NCCL162"]


def test_the_line_ends_of_windows_are_told_once() -> None:
    script = "#!/bin/sh\nexport NCCL_IB_SL=1\nexport NCCL_DEBUG=WARN\n"
    (finding,) = [f for f in of(script.replace("\n", "\r\n")) if f.verdict == "fail"]
    assert (finding.id, finding.line) == ("NCCL140", 2)
    assert ids(script) == []
    assert ids("FROM x\r\nENV NCCL_IB_SL=1\r\n") == []  # Docker takes them away
    assert "NCCL140" in ids("NCCL_DEBUG=WARN\r\n", "/etc/nccl.conf")
    assert ids("NCCL_DEBUG=WARN\r\n", "job.env") == []


def test_an_hca_is_a_prefix_only_of_those_that_machines_have() -> None:
    found = {
        value: one(f"NCCL_IB_HCA={value}").verdict.value
        for value in ("mlx5_1", "mlx5_0,mlx5_1,mlx5_2", "mlx5_bond_4", "mlx5_4")
    }
    assert found == {
        "mlx5_1": "warn", "mlx5_0,mlx5_1,mlx5_2": "warn", "mlx5_bond_4": "warn", "mlx5_4": "pass",
    }  # fmt: skip


@pytest.mark.parametrize(
    "script",
    [
        "export NCCL_IB_TC=106 \\\n  NCCL_IB_GID_INDEX=3\n  NCCL_IB_SL=1\n",
        "export NCCL_IB_TC=106 \\ \n  NCCL_IB_SL=1\n",
        "export NCCL_IB_TC=106 \\\n  # why\n  NCCL_IB_SL=1\n",
    ],
)
def test_an_export_chain_that_ends_early(script: str) -> None:
    (finding,) = [f for f in of(script) if f.verdict == "fail"]
    assert (finding.id, finding.name) == ("NCCL132", "NCCL_IB_SL")
    assert finding.line == script.count("\n")


@pytest.mark.parametrize("option", ["--env ", "--env="])
def test_several_variables_of_one_option(option: str) -> None:
    text = f"apptainer exec {option}NCCL_IB_SL=1,NCCL_IB_HCA==mlx5_0,mlx5_1,NCCL_IB_TC=41 x.sif y\n"
    assert [(s.name, s.value) for s in read_source(text, "x.sh").settings] == [
        ("NCCL_IB_SL", "1"),
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_1"),
        ("NCCL_IB_TC", "41"),
    ]


def test_what_a_build_sets_for_itself_is_not_exported() -> None:
    assert ids("NCCL_VERSION=2.27\nNCCL_REPO=x\ngit clone x\n") == []


def test_where_scripts_set_variables() -> None:
    script = """\
#!/bin/bash
#SBATCH --export=ALL,NCCL_A_1=1
mpirun -np 2 -x NCCL_A_2=1 -x PATH ./x && env NCCL_A_3=1 ./x
docker run -e NCCL_A_4=1 --env=NCCL_A_5=1 --env NCCL_A_6=1 image
srun --export=ALL,NCCL_A_7=1 x | tee "log $(date)"   # NCCL_NO=1
mpiexec -genv NCCL_A_8 1 x
echo NCCL_NO=1; grep NCCL_NO=1 x
cat > env <<-'EOF' && true
\tNCCL_NO=1
\tEOF
export NCCL_A_9="${NCCL_A_9:-1}" NCCL_A_10=$(hostname)
"""
    source = read_source(script, "x.sh")
    assert [s.name for s in source.settings] == [f"NCCL_A_{n}" for n in range(1, 11)]
    assert [s.value for s in source.settings] == ["1"] * 9 + [None]
    lines = [s.line for s in source.settings]
    assert lines == [2, 3, 3, 4, 4, 4, 5, 6, 11, 11]


def test_env_files_keep_what_a_shell_takes_away() -> None:
    text = """\
NCCL_IB_SL="1"
export NCCL_IB_TC=106
NCCL_DEBUG=WARN # loud
NCCL_TOPO_FILE=~/topo.xml
NCCL_IB_SL=2
NCCL_IB_GID_INDEX =3
"""
    found = {f.id for f in lint([read_source(text, "job.env", Format.ENV_FILE)])}
    assert {"NCCL133", "NCCL134", "NCCL135", "NCCL136", "NCCL137", "NCCL138"} <= found


def test_conf_files() -> None:
    (finding,) = of("# ours\nNCCL_IB_SL=1\nexport NCCL_IB_TC=106\n", "/root/.nccl.conf")
    assert (finding.id, finding.line, finding.verdict) == ("NCCL135", 3, "fail")


def test_the_environment_beats_the_files() -> None:
    sources = [
        from_environment({"NCCL_IB_SL": "1", "NCCL_NET": "Socket"}),
        read_source("NCCL_IB_SL=2\nNCCL_IB_HCA==mlx5_0\n", "~/.nccl.conf"),
    ]
    found = {(f.id, f.name, f.source) for f in lint(sources)}
    assert found == {
        ("NCCL139", "NCCL_IB_SL", "~/.nccl.conf"),
        ("NCCL147", "NCCL_IB_HCA", "~/.nccl.conf"),
    }


def test_allowed_names_are_left_alone() -> None:
    source = from_environment({"NCCL_OURS_A": "1", "NCCL_DEBUG": "INFO"})
    assert [f.id for f in lint([source], allowed=["NCCL_OURS_*"])] == ["NCCL161"]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("NCCL_DEBUG=WARN\n", "-", Format.ENV_FILE),
        ("PATH=/bin\nBASH_FUNC_m%%=() {  eval $(x)\n}\nNCCL_DEBUG=WARN\n", "-", Format.ENV_FILE),
        ("export NCCL_DEBUG=WARN\n", "-", Format.SHELL),
        ("#!/bin/sh\nNCCL_DEBUG=WARN\n", "-", Format.SHELL),
        ("NCCL_DEBUG=WARN torchrun x.py\n", "-", Format.SHELL),
        ("NCCL_DEBUG=WARN\n", "/home/me/.nccl.conf", Format.CONF),
        ("NCCL_DEBUG=WARN\n", "x.sh", Format.SHELL),
        ("", "-", Format.ENV_FILE),
    ],
)
def test_formats_are_told_apart(text: str, name: str, expected: Format) -> None:
    assert guess_format(text, name) is expected


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("0x1F", (31, "")),
        ("017", (15, "")),
        ("09", (0, "9")),
        (" -5x", (-5, "x")),
        ("0x", (0, "x")),
        ("true", (0, "true")),
        ("", (0, "")),
    ],
)
def test_numbers_are_read_as_c_does(text: str, read: tuple[int, str]) -> None:
    assert strtoll(text) == read


LIKELY = st.lists(
    st.sampled_from([*"NCCL_IB=\\\n \"'$(){}`#;&|<>^,:019x-", "NCCL_IB_HCA=", "export ", "<<EOF\n",
                     "if ", "case x in", "esac\n", "-x ", "NCCL_DEBUG", "${", "--export=ALL,"])
).map("".join)  # fmt: skip


@given(st.one_of(st.text(), LIKELY), st.sampled_from(Format))
def test_no_text_breaks_it(text: str, text_format: Format) -> None:
    source = read_source(text, "x", text_format)
    lines = text.count("\n") + 1
    for finding in lint([source]):
        assert finding.line is not None
        assert 1 <= finding.line <= lines
    read_source(text, "x")


@given(
    st.dictionaries(
        st.sampled_from(["NCCL_IB_HCA", "NCCL_ALGO", "NCCL_IB_TC", "NCCL_P2P_LEVEL",
                         "UCX_NET_DEVICES", "TORCH_NCCL_NAN_CHECK", "NCCL_DEBUG_SUBSYS", "NCCL_X"]),
        st.text(),
    )
)  # fmt: skip
def test_no_value_breaks_it(variables: dict[str, str]) -> None:
    ids_ = {rule.id for rule in RULES}
    assert all(f.id in ids_ for f in lint([from_environment(variables)]))


def test_many_variables_cost_no_more_each_than_few() -> None:
    names = ("NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_GDR_LEVELS")

    def read(many: int) -> None:
        others = {f"VARIABLE_{n}": "x" for n in range(many)}
        lint([from_environment(others), from_environment(dict.fromkeys(names, "x") | others)])

    read(1)
    assert growth(read, 300, 2400) < 3


def test_a_long_script_costs_no_more_a_line_than_a_short_one() -> None:
    def read(many: int) -> None:
        of(
            "".join(
                f"if x{n}; then\nexport NCCL_IB_SL={n}\nelse\nexport NCCL_IB_TC={n}\nfi\n"
                for n in range(many)
            )
        )

    assert growth(read, 250, 2000) < 3


def test_rules_are_numbered_once() -> None:
    numbers = [rule.id for rule in RULES]
    assert numbers == sorted(set(numbers))
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.what
        assert rule.why.endswith(".")
        assert rule.fix.endswith(".")


def test_the_page_lists_every_rule() -> None:
    page = (ROOT / "docs/how-to/nccl-environment.md").read_text()
    rows = [f"| {r.id} | {r.name} | {r.verdict} | {r.what} |" for r in RULES]
    assert "\n".join(rows) in page


def test_what_replaces_a_name_is_known() -> None:
    from clusterkit.preflight.env_lint.variables import _table  # noqa: PLC0415

    for variable in _table().values():
        if variable.replaced_by and "*" not in variable.replaced_by:
            assert find_variable(variable.replaced_by) is not None, variable.name
        if variable.kind is Kind.PLUGIN:
            assert variable.note, variable.name
        if variable.type == "int" and variable.allowed:
            assert variable.allows(int(variable.allowed.replace("..", ",").split(",")[0]))

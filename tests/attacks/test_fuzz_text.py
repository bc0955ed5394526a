"""Hypothesis writes files of each kind that verbs read: no text of others is a bug of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.core import throughput
from tests.attacks.in_process import Cli, cli

__all__ = ["cli"]  # a fixture

_MORE = "\0\t\n\r \"'\\#$%&()*,-./:;<=>?@[]^_`{|}~0189aAzZ\x1b\x85\u2028\ufeffé٣"
_WORDS: Mapping[str, tuple[str, ...]] = {
    "lint-env FILE": (
        "export NCCL_IB_HCA=",
        "NCCL_SOCKET_IFNAME=eth0,ib0",
        "#SBATCH --export=",
        "<<EOF",
        "EOF",
        "${A:-",
        "$(",
        "env:\n  NCCL_DEBUG: ",
        "&a [*a]",
        "#!/bin/bash",
        "UCX_TLS=",
        "0777",
    ),
    "topo FILE": (
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity",
        "GPU0\t X \tNV18\tSYS\t0-31\t0",
        "GPU1\tNV18\t X \tPIX",
        "NIC Legend:",
        "  NIC0: mlx5_0",
        "NODE",
        "PHB",
        "N/A",
        "GPU" + "9" * 20,
    ),
    "hostfile FILE --format names": (
        "n1 slots=8",
        "n[1-3,7]",
        "slots=",
        "user@",
        "[fe80::1]:22",
        "max_slots=99999999999999",
        "/* ",
        "*/",
        "//",
        "n2:4",
        "# ",
    ),
    "bench collectives --from FILE": (
        "# nThread 1 nGpus 8",
        "#  size count type redop root time",
        "  8   2   float     sum      -1    20.0    0.00    0.00      0    19.0",
        "# Avg bus bandwidth    : 1",
        "# Out of bounds values : 0 OK",
        "#  Rank  0 Group  0 Pid  1 on n1 device  0 [0x00] NVIDIA H100",
        "1e308",
        "nan",
        "9" * 30,
    ),
    "bench compute --from FILE": (
        '{"schema": 1, "kind": "clusterkit-compute", "ranks": [',
        '{"node": "n1", "gpu": 0, "device": "NVIDIA H100", "size": 8192, "seconds": [0.001]}',
        "null, ",
        "]}",
        "1e308",
        "NaN",
        "9" * 30,
        '"readings": [{"when": "load", "exit_code": 0, "text": "index, name"}]',
    ),
    "bench storage --from FILE": (
        '{"schema": 1, "kind": "clusterkit-storage", "ranks": [',
        '{"node": "n1", "slot": 0, "path": "/", "size": 8, "one": ',
        '{"write": {"bytes": 8, "seconds": 0.1, "fsync_s": 0}}}',
        "null, ",
        "]}",
        "1e308",
        "NaN",
        "9" * 30,
        '"read": {"bytes": 8, "seconds": 1, "from": "disk"}',
    ),
    "diagnose FILE": (
        "RuntimeError: CUDA out of memory. Tried to allocate ",
        "Traceback (most recent call last):\n",
        "[rank0]: ",
        "NCCL WARN ",
        "srun: error: n1: task 0: Killed",
        "2026-99-99T99:99:99",
        "ValueError: ",
        "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT ",
        "--- clusterkit: restart 9 on n1, ",
        "[[",
    ),
    "estimate --gpu A100 --gpus 8 --model FILE": (
        '{"hidden_size": ',
        '"num_hidden_layers": ',
        '"model_type": "llama", ',
        "1e999",
        "-1",
        "null",
        "[" * 50,
        '"vocab_size": 32000}',
        '"text_config": {',
        "NaN",
    ),
    "layout --nodes 2 --topology FILE": (
        "SwitchName=s1 Nodes=n[1-2]",
        "Switches=s1",
        "BlockName=b1 ",
        "SwitchName=",
    ),
}


def _texts(words: tuple[str, ...]) -> st.SearchStrategy[str]:
    piece = st.one_of(st.sampled_from(words), st.text(_MORE, max_size=6), st.text(max_size=3))
    return st.lists(piece, max_size=24).map("".join)


@pytest.mark.parametrize("line", _WORDS, ids=lambda line: line.split()[0])
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_text_is_a_bug(cli: Cli, line: str, data: st.DataObject) -> None:
    text = data.draw(_texts(_WORDS[line]))
    Path("FILE").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    code, out, err = cli(*line.split())
    assert code in {0, 1, 2}
    assert "has a bug" not in err
    assert "Traceback" not in err
    assert "\x1b" not in out + err


@pytest.mark.parametrize("line", _WORDS, ids=lambda line: line.split()[0])
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(raw=st.binary(max_size=200))
def test_no_bytes_are_a_bug(cli: Cli, line: str, raw: bytes) -> None:
    Path("FILE").write_bytes(raw)
    code, _, err = cli(*line.split())
    assert code in {0, 1, 2}
    assert "has a bug" not in err


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.sampled_from(
            [
                "import torch\n",
                "init()",
                "(",
                ")",
                "[",
                ":\n",
                " ",
                "x",
                "=",
                "lambda ",
                "def f()",
                "'",
                '"""',
                "\\",
                "\0",
                "é",
                "if ",
                "try:\n",
                "return ",
                "@",
                "f'{",
                "}'",
                "0x",
                "async ",
            ]
        ),
        max_size=40,
    ).map("".join)
)
def test_no_script_is_a_bug(cli: Cli, text: str) -> None:
    Path("train.py").write_text(text)
    code, _, err = cli(
        *["render", "--framework", "torchrun", "--stdout", "--only", "node", "train.py"]
    )
    assert (code, "has a bug" in err) == (0, False), err


@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                ["step ", "samples/s ", "it/s", "tps: ", "dt ", "ms", "9" * 400, "1e999"]
            ),
            st.text(_MORE, max_size=5),
        )
    ).map("".join)
)
def test_no_line_of_a_trainer_is_a_bug(line: str) -> None:
    found = throughput.read(line)
    assert found is None or found.rate > 0

"""Recordings of scripts and of /etc/environment through `lint-env`, with what is right for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterkit.preflight.env_lint.lint import lint
from clusterkit.preflight.env_lint.sources import read_source
from tests.helpers.command_line import typed
from tests.helpers.recordings import recording

FRESH = "fresh-2026-11/"
LOUD = {
    # file: (name, rule) of every warning and failure
    FRESH + "env_sharp_plugin_names.sh": {("NCCL_AVOID_RECORD_STREAMS", "NCCL105")},
    FRESH + "etc_environment_gib_a4high": set(),
    "env_gdr_level_typo.sh": {("NCCL_GDR_LEVEL", "NCCL101"), ("NCCL_NVLS_ENABLE", "NCCL162")},
    "env_hunyuan3d_train_deepspeed.sh": {
        ("NCCL_CHECK_DISABLE", "NCCL101"),
        ("NCCL_LL_THRESHOLD", "NCCL103"),
        ("NCCL_IB_CUDA_SUPPORT", "NCCL103"),
        ("NCCL_NET_GDR_LEVEL", "NCCL115"),
        ("NCCL_IB_HCA", "NCCL122"),
        ("NCCL_IB_HCA", "NCCL123"),
        ("NCCL_SOCKET_IFNAME", "NCCL123"),
        ("NCCL_NVLS_ENABLE", "NCCL162"),
    },
}


@pytest.mark.parametrize("name", LOUD)
def test_recordings(name: str, tmp_path: Path) -> None:
    script = tmp_path / Path(name).name
    script.write_text(recording(name), encoding="utf-8")
    done = typed("lint-env", str(script), "--json")
    found = json.loads(done.stdout)["findings"]
    loud = {(f["name"], f["id"]) for f in found if f["verdict"] != "pass"}
    assert (done.returncode, loud) == (1 if LOUD[name] else 0, LOUD[name])


def test_every_name_of_a_plug_in_has_its_reader() -> None:
    name = FRESH + "env_sharp_plugin_names.sh"
    found = lint([read_source(recording(name), name)])
    read = {f.name for f in found if f.id == "NCCL107" and "SHARP" in f.summary}
    assert read == {
        "NCCL_SHARP_DISABLE",
        "NCCL_IBEXT_DISABLE",
        "NCCL_SHARP_GROUP_SIZE_THRESH",
        "NCCL_UCX_DISABLE",
        "NCCL_SHARP_DISABLE_REDUCE_SCATTER",
    }

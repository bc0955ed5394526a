"""The page of each cloud has a configuration, by which a job of two nodes is rendered."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate.how_to import GROUPS
from tests.helpers.command_line import outcome
from tests.helpers.doc_blocks import blocks
from tests.helpers.paths import ROOT

SAYS = {
    "aws-parallelcluster": "#SBATCH --gpus-per-node=8",
    "aws-hyperpod": "--auto-resume=1",
    "google-cluster-toolkit": "source /usr/local/gib/scripts/set_nccl_env.sh",
    "azure-cyclecloud": "NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml",
    "oracle": "NCCL_IB_HCA==mlx5_0",
    "rented-machines": "NCCL_SOCKET_IFNAME=eno1",
}


def test_every_cloud_has_its_page() -> None:
    assert {*GROUPS["Clouds"]} == {"platforms", "services", *SAYS}


@pytest.mark.parametrize("page", SAYS)
def test_a_job_is_rendered_by_the_configuration_of_a_cloud(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config,) = blocks(ROOT / "docs" / "how-to" / f"{page}.md", "yaml")
    (tmp_path / "clusterkit.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    code, said, errors = outcome("render", "--nodes", "2", "--stdout", "train.py")
    assert code == 0, errors
    assert SAYS[page] in said
    assert outcome("config", "show")[0] == 0

"""What `make test-gpu` looks at on a machine, over the test double of nvidia-smi."""

from __future__ import annotations

from pathlib import Path

from tests.gpu.looks import DOUBLES, differences, fields_of, look


def test_a_healthy_machine_and_what_it_says_in_other_words(tmp_path: Path) -> None:
    found = look(tmp_path / "machine", **DOUBLES)
    assert found["unknown"] == found["failed"] == []
    assert found["doctor"]["summary"] == "8 x NVIDIA H100 80GB HBM3"
    assert len(found["top"]) == len(found["topo"]) == 8
    assert found["differences"] == {}

    query = tmp_path / "machine" / "raw" / "q.txt"
    query.write_text(query.read_text().replace("Product Name ", "Product Brand"))
    (answer,) = differences(tmp_path / "machine").items()
    assert answer == (
        "nvidia-smi -q",
        {"only here": ["Product Brand"], "only double": ["Product Name"]},
    )


def test_fields_are_names_without_values_and_numbers() -> None:
    assert fields_of("    GPU UUID     : GPU-1\nGPU 00000000:19:00.0\n") == {"GPU UUID", "GPU #"}
    assert fields_of("index, name [MiB]\n0, 12\n") == {"index", "name [MiB]"}

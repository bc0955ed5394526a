"""How lines of logs fit the terminal: a traceback keeps its files and line numbers."""

from __future__ import annotations

import pytest

from clusterkit.cli.diagnose.report import rows

SITE = "/home/ada/miniconda3/envs/training/lib/python3.11/site-packages/"
LONG = f"{SITE}torch/distributed/distributed_c10d.py"


@pytest.mark.parametrize("columns", ["40", "60", "80", "100", "200"])
@pytest.mark.parametrize(
    ("path", "name", "rest"),
    [
        (LONG, "distributed_c10d.py", ", in init_process_group"),
        (f"{SITE}huggingface_hub/file_download.py", "file_download.py", ", in hf_hub_download"),
        (f"{SITE}a.py", "a.py", ""),
        ("train_with_a_very_long_name_of_its_own_that_fills_more_than_a_row.py",
         "train_with_a_very_long_name_of_its_own_that_fills_more_than_a_row.py", ", in main"),
        ("/x/train.py", "train.py", f", in {'f' * 90}"),
    ],
)  # fmt: skip
def test_a_frame_keeps_its_file_and_line_number(
    monkeypatch: pytest.MonkeyPatch, columns: str, path: str, name: str, rest: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for prefix in ("  ", "[rank3]:   ", "    "):
        line = f'{prefix}File "{path}", line 1849{rest}'
        (row,) = rows(line, 1)
        assert f'{name}", line 1849' in row
        fits = len(f'  | {prefix}File "…/{name}", line 1849') <= int(columns)
        assert (len(row) <= int(columns)) or not fits, row
        if len(line) + 4 <= int(columns):
            assert row == f"  | {line}"
    (row,) = rows(f'  File "{LONG}", line 1849, in init_process_group', 1)
    if columns == "80":
        whole = '  |   File "…/distributed/distributed_c10d.py", line 1849, in init_process_group'
        assert row == whole


def test_other_lines_are_cut_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    (row,) = rows("x" * 100, 1)
    assert (len(row), row[-1]) == (40, "…")
    assert len(list(rows("word " * 30, 5))) == 5


def test_marks_below_a_line_of_code_stay_in_their_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (row,) = rows(f"{' ' * 40}{'^' * 60}", 3)
    assert row == f"  | {' ' * 40}{'^' * 36}"

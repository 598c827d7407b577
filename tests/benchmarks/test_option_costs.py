from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import option_costs as program
from penstock.netem.figures.figure_file import read_figure_file


def test_each_option_has_its_cost_and_mosquitto_where_it_has_the_option(tmp_path: Path) -> None:
    """Each configuration starts and carries both loads; the table goes into a page."""
    file = tmp_path / "figures.json"
    assert program.main(["--quick", "--repeats", "1", "--figures", str(file)]) == 0
    origin, tables = read_figure_file(file)
    assert origin.command.startswith("python -m benchmarks.option_costs --quick ")
    table = tables["options"]
    assert [row[0] for row in table.rows] == [option.words for option in program.OPTIONS]
    assert float(table.cell("users and an ACL file", "`qos1_1to1`, mosquitto")) >= 0
    assert table.cell("`payload_bytes`", "`qos1_1to1`, mosquitto") == "-"
    assert all(float(row[1]) >= 0 for row in table.rows)


def test_a_figures_file_that_cannot_be_written_is_told_before_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured in vain."""
    assert program.main(["--quick", "--figures", str(tmp_path / "none" / "figures.json")]) == 1
    assert "no folder" in capfd.readouterr().err

from __future__ import annotations

from pathlib import Path

from benchmarks import console_cost as program
from penstock.netem.figures.figure_file import read_figure_file


def test_each_way_to_watch_has_its_share_of_a_core(tmp_path: Path) -> None:
    """Each is answered by a broker with clients; the table goes into a page."""
    file = tmp_path / "figures.json"
    assert program.main(["--quick", "--repeats", "1", "--figures", str(file)]) == 0
    origin, tables = read_figure_file(file)
    assert origin.command.startswith("python -m benchmarks.console_cost --quick ")
    table = tables["console"]
    words = ["nobody, of all work", *(one.words for one in program.SITUATIONS)]
    assert [row[0] for row in table.rows] == words
    assert all(float(row[3]) > 0 for row in table.rows[1:])
    ((painted,),) = tables["page"].rows
    assert float(painted) > 0
    assert [row[0] for row in tables["rows"].rows] == [f"`{name}`" for name in program.MEASURED]

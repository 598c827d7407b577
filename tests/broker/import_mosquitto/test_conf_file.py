from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.errors import ConfigError
from penstock.broker.import_mosquitto.conf_file import Line, parse_lines, read_conf


def test_a_line_is_a_name_and_what_follows() -> None:
    """Blanks around the value are no part of it; comments and empty lines say nothing."""
    text = "# comment\n\nport 1883\n  topic  # both 2 \r\npersistence\n"
    assert parse_lines(text, "f") == [
        Line("f", 3, "port", "1883"),
        Line("f", 4, "topic", "# both 2"),
        Line("f", 5, "persistence", ""),
    ]


def test_included_files_come_in_mosquittos_order(tmp_path: Path) -> None:
    """Where the directive stands, by name, A before a before B; other files are left alone."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    for name in ("b.conf", "A.conf", "01.conf", "a.conf", "B.conf", "00.conf"):
        (folder / name).write_text(f"user {name}\n")
    (folder / "c.txt").write_text("user c\n")
    main = tmp_path / "mosquitto.conf"
    main.write_text(f"user before\ninclude_dir {folder}\nuser after\n")
    values = [line.value for line in read_conf(main) if line.name == "user"]
    between = ["00.conf", "01.conf", "A.conf", "a.conf", "B.conf", "b.conf"]
    assert values == ["before", *between, "after"]


def test_a_byte_order_mark_is_no_directive(tmp_path: Path) -> None:
    """Editors of Windows begin a file with one."""
    main = tmp_path / "mosquitto.conf"
    main.write_bytes(b"\xef\xbb\xbfuser a\r\n")
    assert [(line.name, line.value) for line in read_conf(main)] == [("user", "a")]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The file or folder, and where it was asked for."""
    main = tmp_path / "mosquitto.conf"
    with pytest.raises(ConfigError, match=r"mosquitto\.conf: file: read No such file"):
        read_conf(main)
    main.write_text(f"\ninclude_dir {tmp_path / 'none'}\n")
    with pytest.raises(ConfigError, match=r"line 2, include_dir .*none: read No such file"):
        read_conf(main)
    main.write_bytes(b"\nuser \xff")
    with pytest.raises(ConfigError, match=r"line 2: read no UTF-8"):
        read_conf(main)


def test_an_included_file_includes_nothing(tmp_path: Path) -> None:
    """As in mosquitto."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "a.conf").write_text(f"include_dir {folder}\n")
    main = tmp_path / "mosquitto.conf"
    main.write_text(f"include_dir {folder}\n")
    with pytest.raises(
        ConfigError, match=r"a\.conf: line 1: read include_dir; allowed: in the main"
    ):
        read_conf(main)


def test_a_comment_may_be_in_any_encoding(tmp_path: Path) -> None:
    """Mosquitto does not read it; files of twenty years ago are in Latin-1."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "a.conf").write_bytes(b"user b\n#\xfcber\r\n")
    main = tmp_path / "mosquitto.conf"
    main.write_bytes(b"\xef\xbb\xbf# f\xfcr alle\nuser a\n#\xff\ninclude_dir %b" % bytes(folder))
    assert [(line.number, line.value) for line in read_conf(main) if line.name == "user"] == [
        (2, "a"),
        (1, "b"),
    ]

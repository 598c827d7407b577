"""ACL files with ``%c`` and clients on two lanes."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.two_lanes import PICTURE, Application, wait_for


def test_both_lanes_have_the_rights_of_the_first_client_id(tmp_path: Path) -> None:
    """A rule with `%c` stands for it; what it denies is denied on the large lane, too."""
    (tmp_path / "acl").write_text("topic read #\npattern write %c/#\n")
    access = {"acl_file": str(tmp_path / "acl")}
    with (
        running_broker(anonymous_policy({"access": access}), tmp_path) as broker,
        Application("cam", broker.port) as cam,
        Application("dashboard", broker.port, topics="+/pictures") as dashboard,
    ):
        wait_for(lambda: cam.is_on_two_lanes)
        cam.client.publish("other/pictures", PICTURE + b"denied", 1).wait_for_publish()
        cam.client.publish("cam/pictures", PICTURE + b"1", 1)
        cam.client.publish("cam/pictures", b"2", 1)
        assert dashboard.payloads(2) == [b"1", b"2"]

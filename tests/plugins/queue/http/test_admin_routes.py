from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.queue.client import AccessError, QueueClient
from penstock.plugins.queue.config import LogicalQueueConfig
from tests.helpers.process import anonymous_policy, running_broker
from tests.plugins.queue.http.serving import serving


async def test_figures_show_queues_their_groups_and_books() -> None:
    """The list of queues has what each one alone has."""
    async with serving() as server:
        await server.store_rows("work", "x", "y")
        await server.receive(max_messages=1)
        listed = (await server.ask("GET", "/queues")).json["queues"]
        assert [queue["name"] for queue in listed] == ["log", "work"]
        shown = (await server.ask("GET", "/queues/work")).json
        assert shown["messages"] == listed[1]["messages"] == 2
        books = {"matched": 2, "stored": 2, "queued": 0, "dropped": {}}
        assert shown["enqueued"]["requested"] == books
        assert [one["next"] for one in shown["physical_queues"].values()] == [1, 1]
        group = (await server.ask("GET", "/queues/work/groups/default")).json
        assert (group["name"], group["waiting"], group["leased"]) == ("default", 2, 1)
        assert group["incarnation"] == shown["incarnation"]
        assert group["requests"]["messages"] == 1


async def test_queues_come_change_and_go() -> None:
    """A new one has a group `default`; settings that are left out have their defaults."""
    async with serving() as server:
        made = (await server.ask("PUT", "/queues/new", {"delay_seconds": 5})).json
        assert (made["settings"]["delay_seconds"], list(made["groups"])) == (5, ["default"])
        changed = (await server.ask("PUT", "/queues/new", {"max_bytes": "1 MiB"})).json
        assert changed["settings"]["delay_seconds"] == 0
        assert changed["settings"]["max_bytes"] == 2**20
        assert changed["incarnation"] == made["incarnation"]
        assert (await server.ask("DELETE", "/queues/new")).json == {"deleted": True}
        answer = await server.ask("GET", "/queues/new")
        assert (answer.status, answer.json["error"]) == (
            404,
            'queue: read "new"; allowed: log, work',
        )


async def test_some_settings_are_changed_and_the_others_stay() -> None:
    """Those of a queue and of its groups; a queue never loses its topics by being left out."""
    made = {"topics": ["a/#"], "delay_seconds": 5}
    async with serving() as server:
        await server.ask("PUT", "/queues/new", made | {"tags": {"a": "b"}})
        changed = (await server.ask("PATCH", "/queues/new", {"max_messages": 7})).json["settings"]
        assert {name: changed[name] for name in made} == made
        assert (changed["max_messages"], changed["tags"]) == (7, {"a": "b"})
        changed = (await server.ask("PATCH", "/queues/new", {"max_messages": None})).json
        assert changed["settings"]["max_messages"] is None
        changed = (await server.ask("PUT", "/queues/new", {"max_messages": 7})).json["settings"]
        assert (changed["topics"], changed["delay_seconds"]) == (["a/#"], 0)
        assert (await server.ask("PUT", "/queues/new", {"topics": []})).json["settings"][
            "topics"
        ] == []
        group = "/queues/new/groups/default"
        await server.ask("PUT", group, {"visibility_timeout": 5, "max_receives": 3})
        changed = (await server.ask("PATCH", group, {"max_receives": 4})).json["settings"]
        assert (changed["visibility_timeout"], changed["max_receives"]) == (5, 4)
        for path in ("/queues/none", "/queues/new/groups/none"):
            assert (await server.ask("PATCH", path, {})).status == 404
        assert (await server.ask("PATCH", "/queues/new", {"max_messages": 0})).status == 400


async def test_the_groups_of_a_queue_are_listed() -> None:
    """Each as it is shown by itself."""
    async with serving() as server:
        await server.ask("PUT", "/queues/work/groups/other", {})
        listed = (await server.ask("GET", "/queues/work/groups")).json["groups"]
        alone = [
            (await server.ask("GET", f"/queues/work/groups/{one}")).json
            for one in ("default", "other")
        ]
        for one in (*listed, *alone):
            one.pop("idle_seconds")
        assert listed == alone
        assert (await server.ask("GET", "/queues/none/groups")).status == 404


async def test_the_list_lacks_a_queue_that_another_program_has_just_deleted() -> None:
    """It is gone from the engine before the service has looked."""
    async with serving() as server:
        await server.service.engine.delete_queue("work")
        listed = await server.ask("GET", "/queues")
        assert [queue["name"] for queue in listed.json["queues"]] == ["log"]
        assert (await server.ask("GET", "/health")).status == 200


async def test_a_queue_of_a_request_takes_every_key_of_the_policy_file() -> None:
    """It is served by them, and a queue that has no lease group refuses those of receivers."""
    keys = {"dequeue": "conventional", "n_max": 2, "max_wait_seconds": 1, "sqs_body": "base64"}
    async with serving() as server:
        made = (await server.ask("PUT", "/queues/new", keys)).json
        assert set(made["settings"]) == {key.name for key in fields(LogicalQueueConfig)} - {
            "groups"
        } | {"tags"}
        assert {key: made["settings"][key] for key in keys} == keys
        many = await server.ask("POST", "/queues/new/groups/default/receive", {"max_messages": 3})
        assert (many.status, many.json["error"]) == (400, "max_messages: read 3; allowed: 1 to 2")
        changed = (await server.ask("PUT", "/queues/new", {"dequeue": "rds"})).json
        assert changed["settings"]["dequeue"] == "rds"
        readers = {"dequeue": "rds", "groups": {"g": {"kind": "offsets"}}}
        refused = await server.ask("PUT", "/queues/other", readers)
        assert refused.status == 400
        assert "no dequeue without a group of kind lease" in refused.json["error"]


async def test_the_settings_of_an_answer_can_be_sent_back() -> None:
    """Queues and groups take back their own settings, and nothing changes."""
    settings = {"key": "topic", "tags": {"a": "b"}, "groups": {"g": {"start": 17.5}}}
    async with serving() as server:
        made = (await server.ask("PUT", "/queues/new", settings)).json
        again = await server.ask("PUT", "/queues/new", made["settings"])
        assert again.json["settings"] == made["settings"]
        group = (await server.ask("GET", "/queues/new/groups/g")).json
        again = await server.ask("PUT", "/queues/new/groups/g", group["settings"])
        assert again.json["settings"] == group["settings"]


async def test_tags_stay_where_none_are_given() -> None:
    """Other protocols keep settings of theirs in them."""
    async with serving() as server:
        await server.ask("PUT", "/queues/new", {"tags": {"a": "b"}})
        changed = (await server.ask("PUT", "/queues/new", {"delay_seconds": 5})).json
        assert changed["settings"]["tags"] == {"a": "b"}
        changed = (await server.ask("PUT", "/queues/new", {"tags": {}})).json
        assert changed["settings"]["tags"] == {}


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/queues/new", {"max_messages": 0}, "max_messages: read 0"),
        ("/queues/new", {"topics": ["a/#/b"]}, "topics.0: read 'a/#/b'"),
        ("/queues/new", {"groups": {"g": {"kind": "x"}}}, "groups.g.kind: read 'x'"),
        ("/queues/new", {"readers": "offsets"}, 'body: read unknown key "readers"; allowed: dedup'),
        ("/queues/new", {"keeps_last": True}, "a key with keeps_last"),
        ("/queues/new", {"tags": {"a": 5}}, "tags: read"),
        ("/queues/new", {"tags": {"a": "x" * 257}}, "at most 50 texts of 256 characters"),
        ("/queues/new", {"tags": {"\ud800": "x"}}, "half a surrogate"),
        ("/queues/new", {"key": "property:\ud800"}, "body: read"),
        ("/queues/-new", {}, "queue: read '-new'; allowed: a name of 1 to 80 letters"),
        ("/queues/work/groups/a b", {}, "group: read 'a b'; allowed: a name"),
        ("/queues/work/groups/g", {"order": "key"}, "order: read key; allowed: any"),
        ("/queues/work/groups/g", {"dead_letter_queue": "no"}, "dead_letter_queue: read no"),
        ("/queues/work/groups/g", {"dead_letter_queue": "work"}, "dead_letter_queue: read work"),
        ("/queues/work/groups/default", {"visibility_timeout": 0}, "visibility_timeout: read 0"),
        ("/queues/work/groups/g", {"start": "noon"}, "start: read 'noon'"),
    ],
)
async def test_wrong_settings_are_told(path: str, body: dict[str, Any], told: str) -> None:
    """As those of the policy file are, with the place in the body; nothing is made."""
    async with serving() as server:
        answer = await server.ask("PUT", path.replace(" ", "%20"), body)
        assert (answer.status, told in answer.json["error"]) == (400, True), answer.body
        assert server.service.names() == ["log", "work"]
        assert list(server.service.figures("work")["groups"]) == ["default"]


async def test_purging_and_redriving_say_how_many_messages() -> None:
    """Dead letters go back to the queue in which they died."""
    queues = {"work": {"groups": {"default": {"dead_letter_queue": "dead"}}}, "dead": {}}
    async with serving(queues=queues) as server:
        await server.store_rows("work", "x", "y", "z")
        handles = [one["receipt_handle"] for one in await server.receive(max_messages=2)]
        body = {"action": "dead", "receipt_handles": handles}
        await server.ask("POST", "/queues/work/groups/default/settle", body)
        answer = await server.ask("POST", "/queues/dead/redrive", {"max_messages": 1})
        assert answer.json == {"moved": 1}
        answer = await server.ask("POST", "/queues/dead/redrive", {"target": "work"})
        assert answer.json == {"moved": 1}
        assert (await server.ask("POST", "/queues/work/purge", {})).json == {"removed": 3}


async def test_a_change_that_would_part_the_messages_of_a_key_is_a_conflict() -> None:
    """The error says what to do."""
    keys = {"key": "topic", "physical_queues": 2}
    async with serving(queues={"work": keys}) as server:
        await server.store_rows("work", "x")
        answer = await server.ask("PUT", "/queues/work", keys | {"physical_queues": 3})
        assert answer.status == 409
        told = "queue work: physical_queues: read 3; allowed: 2, while it holds messages (1)"
        assert answer.json["error"].startswith(told)
        await server.ask("POST", "/queues/work/purge", {})
        assert (
            await server.ask("PUT", "/queues/work", keys | {"physical_queues": 3})
        ).status == 200


async def test_health_says_what_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue goes on, so the status of the answer is 200."""
    async with serving() as server:
        snapshot = server.service.engine.snapshot

        def damaged(queue: str) -> Any:
            found = snapshot(queue)
            if queue == "work":
                object.__setattr__(found, "set_aside", 2)
            return found

        monkeypatch.setattr(server.service.engine, "snapshot", damaged)
        answer = await server.ask("GET", "/health")
    assert answer.status == 200
    assert answer.json == {"status": "damaged", "set_aside": {"work": 2}}


async def test_without_tokens_a_copy_is_written_beside_the_database_alone(tmp_path: Path) -> None:
    """Any account of the machine may ask, and the broker's user may be root."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").mkdir()
    database = tmp_path / "data" / "queue.db"
    policy = anonymous_policy({"queue": {"http": "127.0.0.1:0", "path": str(database)}})
    with running_broker(policy, tmp_path) as broker:
        broker.wait_for_log("every account of this machine")
        client = QueueClient(broker.queue_url)
        for path in (
            tmp_path / "elsewhere" / "copy.db",
            tmp_path / "data" / ".." / "elsewhere" / "copy.db",
            Path("copy.db"),
            Path("/etc/cron.d/copy"),
        ):
            with pytest.raises(AccessError, match=f"a new file in {database.parent}, as"):
                client.backup(str(path))
        assert client.backup(str(tmp_path / "elsewhere" / ".." / "data" / "copy.db"))
        assert (tmp_path / "data" / "copy.db").exists()
        assert not list((tmp_path / "elsewhere").iterdir())

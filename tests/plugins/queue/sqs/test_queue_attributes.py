from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock.plugins.queue.config import DEFAULT_GROUP
from penstock.plugins.queue.engines.contract import (
    GroupSnapshot,
    GroupSpec,
    QueueSnapshot,
    QueueSpec,
)
from penstock.plugins.queue.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    INVALID_PARAMETER_VALUE,
    UNSUPPORTED_OPERATION,
    Fault,
    SqsError,
)
from penstock.plugins.queue.sqs.queue_attributes import (
    QueueSettings,
    arn_of,
    changed,
    name_of_arn,
    new_settings,
    settings_of,
    shown,
)

REGION = "eu-west-1"
OTHERS = {name: new_settings(name).spec for name in ("dead", "dead.fifo", "closed", "chosen")}
OTHERS["closed"] = replace(
    OTHERS["closed"], tags={"aws:sqs:RedriveAllowPolicy": '{"redrivePermission": "denyAll"}'}
)
OTHERS["chosen"] = replace(
    OTHERS["chosen"],
    tags={
        "aws:sqs:RedriveAllowPolicy": json.dumps(
            {"redrivePermission": "byQueue", "sourceQueueArns": [arn_of("q", REGION)]}
        )
    },
)


def with_attributes(attributes: Any, name: str = "q") -> QueueSettings:
    """Return the settings of a new queue with attributes."""
    return changed(name, new_settings(name), attributes, OTHERS.get)


def refusal(attributes: Any, name: str = "q") -> tuple[Fault, str]:
    """Return why attributes are refused."""
    with pytest.raises(SqsError) as refused:
        with_attributes(attributes, name)
    return refused.value.fault, str(refused.value)


def redrive(target: str = "dead", receives: Any = 3) -> dict[str, str]:
    """Return attributes with dead letters."""
    arn = f"arn:aws:sqs:us-east-1:123456789012:{target}"
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": receives}
    return {"RedrivePolicy": json.dumps(policy)}


def snapshot(
    settings: QueueSettings, *, waiting: int = 0, leased: int = 0, delayed: int = 0
) -> QueueSnapshot:
    """Return a queue as the engine shows it."""
    group = GroupSnapshot(settings.group, {}, waiting, leased, delayed, 0, {}, 0.0)
    return QueueSnapshot(
        incarnation="inc",
        spec=settings.spec,
        usage={},
        messages=waiting,
        payload_bytes=0,
        stored_bytes=0,
        reserved=0,
        removed={},
        set_aside=0,
        oldest_seconds=None,
        groups={DEFAULT_GROUP: group},
    )


def attributes_of(settings: QueueSettings, name: str = "q", **counts: int) -> Mapping[str, str]:
    """Return all attributes of a queue."""
    return shown(name, snapshot(settings, **counts), ["All"], REGION)


def test_a_new_queue_has_amazons_defaults() -> None:
    """Four days of retention, half a minute of invisibility."""
    assert attributes_of(new_settings("q"), waiting=10, leased=3, delayed=2) == {
        "ApproximateNumberOfMessages": "5",
        "ApproximateNumberOfMessagesDelayed": "2",
        "ApproximateNumberOfMessagesNotVisible": "3",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": "arn:aws:sqs:eu-west-1:000000000000:q",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "false",
        "VisibilityTimeout": "30",
    }


def test_attributes_are_settings_of_queue_and_group() -> None:
    """Others are kept in tags."""
    settings = with_attributes(
        {
            "DelaySeconds": "5",
            "MessageRetentionPeriod": "60",
            "VisibilityTimeout": "43200",
            "MaximumMessageSize": "1024",
            "ReceiveMessageWaitTimeSeconds": "20",
            **redrive(),
        }
    )
    assert settings.spec.delay_seconds == 5.0
    assert settings.spec.retention_seconds == 60.0
    assert settings.group.visibility_timeout == 43200.0
    assert (settings.group.max_receives, settings.group.dead_letter_queue) == (3, "dead")
    found = attributes_of(settings)
    assert found["MaximumMessageSize"] == "1024"
    assert found["ReceiveMessageWaitTimeSeconds"] == "20"
    assert json.loads(found["RedrivePolicy"]) == {
        "deadLetterTargetArn": arn_of("dead", REGION),
        "maxReceiveCount": 3,
    }


def test_a_default_value_needs_no_tag() -> None:
    """So a queue that is created with it is the same as one without."""
    given = {"MaximumMessageSize": "1048576", "ReceiveMessageWaitTimeSeconds": "0"}
    assert with_attributes(given) == new_settings("q")


def test_an_empty_policy_ends_dead_letters() -> None:
    """Or an empty object, as SDKs send it."""
    for empty in ("", "{}"):
        settings = changed("q", with_attributes(redrive()), {"RedrivePolicy": empty}, OTHERS.get)
        assert settings == new_settings("q")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("DelaySeconds", "901"),
        ("DelaySeconds", "-1"),
        ("DelaySeconds", "1.5"),
        ("DelaySeconds", ""),
        ("DelaySeconds", "9" * 5000),
        ("DelaySeconds", "0" * 18 + "901"),
        ("DelaySeconds", 5),
        ("MaximumMessageSize", "1023"),
        ("MaximumMessageSize", "1048577"),
        ("MessageRetentionPeriod", "59"),
        ("MessageRetentionPeriod", "1209601"),
        ("ReceiveMessageWaitTimeSeconds", "21"),
        ("VisibilityTimeout", "43201"),
        ("FifoQueue", "true"),
        ("SqsManagedSseEnabled", "true"),
        ("RedrivePolicy", "["),
        ("RedrivePolicy", "[" * 9999),
        ("RedrivePolicy", "[]"),
        ("RedrivePolicy", '{"maxReceiveCount": 3}'),
        ("RedriveAllowPolicy", '{"redrivePermission": "some"}'),
        ("RedriveAllowPolicy", '{"redrivePermission": "byQueue"}'),
        ("RedriveAllowPolicy", '{"redrivePermission": "allowAll", "sourceQueueArns": ["a"]}'),
    ],
)
def test_values_that_are_not_allowed(attribute: str, value: Any) -> None:
    """The error names the attribute and what is allowed."""
    fault, text = refusal({attribute: value})
    assert fault == INVALID_ATTRIBUTE_VALUE
    assert attribute in text
    assert "allowed" in text


@pytest.mark.parametrize(
    "attribute", ["Colour", "All", "QueueArn", "CreatedTimestamp", "ContentBasedDeduplication"]
)
def test_names_that_cannot_be_set(attribute: str) -> None:
    """Unknown ones, computed ones, and those of FIFO queues."""
    assert refusal({attribute: "true"})[0] == INVALID_ATTRIBUTE_NAME


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("Policy", '{"Version": "2012-10-17"}'),
        ("KmsMasterKeyId", "alias/aws/sqs"),
        ("KmsDataKeyReusePeriodSeconds", "300"),
        ("SqsManagedSseEnabled", "true"),
    ],
)
def test_what_would_have_no_effect_may_be_kept(attribute: str, value: str) -> None:
    """A template that sets it finds it again, and can take it away."""
    settings = changed("q", new_settings("q"), {attribute: value}, OTHERS.get, ignores=True)
    assert shown("q", snapshot(settings), ["All"], REGION)[attribute] == value
    settings = changed("q", settings, {attribute: ""}, OTHERS.get, ignores=True)
    assert settings == new_settings("q")


@pytest.mark.parametrize("attribute", ["Policy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"])
def test_what_would_have_no_effect_is_refused(attribute: str) -> None:
    """Nobody is to believe that it protects something; an empty value asks for nothing."""
    fault, text = refusal({attribute: "alias/aws/sqs"})
    assert fault == UNSUPPORTED_OPERATION
    assert attribute in text
    assert with_attributes({attribute: ""}) == new_settings("q")


@pytest.mark.parametrize(
    ("target", "name"),
    [("missing", "q"), ("dead.fifo", "q"), ("dead", "q.fifo"), ("q", "q"), ("closed", "q")],
)
def test_queues_that_dead_letters_cannot_go_to(target: str, name: str) -> None:
    """It must exist, be of the same kind, be another one, and allow it."""
    fault, text = refusal(redrive(target), name)
    assert fault == INVALID_PARAMETER_VALUE
    assert "RedrivePolicy" in text


def test_a_dead_letter_queue_may_choose_its_sources() -> None:
    """By their ARNs."""
    assert with_attributes(redrive("chosen")).group.dead_letter_queue == "chosen"
    assert refusal(redrive("chosen"), "other")[0] == INVALID_PARAMETER_VALUE


@pytest.mark.parametrize("receives", [0, 1001, "x", None, float("inf")])
def test_receives_before_a_dead_letter(receives: Any) -> None:
    """From 1 to 1,000; SDKs send them as text, too."""
    assert refusal(redrive(receives=receives))[0] == INVALID_ATTRIBUTE_VALUE
    assert with_attributes(redrive(receives="7")).group.max_receives == 7


def test_a_fifo_queue_has_keys_and_order() -> None:
    """Its own attributes are shown, too."""
    settings = with_attributes({"FifoQueue": "true", "ContentBasedDeduplication": "True"}, "q.fifo")
    assert settings.spec.key == "property:penstock-key"
    assert settings.group.order == "key"
    found = attributes_of(settings, "q.fifo")
    assert found["FifoQueue"] == "true"
    assert found["ContentBasedDeduplication"] == "true"
    assert found["DeduplicationScope"] == "queue"
    assert found["FifoThroughputLimit"] == "perQueue"


def test_a_fifo_queue_stays_one() -> None:
    """By its name."""
    assert refusal({"FifoQueue": "false"}, "q.fifo")[0] == INVALID_ATTRIBUTE_VALUE


def test_attributes_are_shown_by_name() -> None:
    """Those without a value are left out; unknown ones are refused."""
    held = snapshot(new_settings("q"))
    assert shown("q", held, ["VisibilityTimeout", "RedrivePolicy"], REGION) == {
        "VisibilityTimeout": "30"
    }
    assert shown("q", held, [], REGION) == {}
    with pytest.raises(SqsError, match="Colour") as refused:
        shown("q", held, ["Colour"], REGION)
    assert refused.value.fault == INVALID_ATTRIBUTE_NAME


def test_a_queue_without_a_group_for_sqs_shows_its_defaults() -> None:
    """The group is created with the first receive."""
    held = replace(snapshot(new_settings("q"), waiting=4), groups={})
    assert settings_of("q", held).group == GroupSpec()
    found = shown("q", held, ["All"], REGION)
    assert found["ApproximateNumberOfMessages"] == "4"


def test_a_queue_that_keeps_its_messages_says_nothing_of_retention() -> None:
    """SQS has no word for it."""
    settings = new_settings("q")._replace(spec=QueueSpec(retention_seconds=None))
    assert "MessageRetentionPeriod" not in attributes_of(settings)


@pytest.mark.parametrize("arn", ["q", "arn:aws:s3:::q", "arn:aws:sqs:eu:1:", "arn:aws:sqs:a:b:c:d"])
def test_arns_that_are_none(arn: str) -> None:
    """The error names the parameter."""
    with pytest.raises(SqsError, match="SourceArn"):
        name_of_arn("SourceArn", arn)
    assert name_of_arn("SourceArn", "arn:aws:sqs:eu-west-1:1:q.fifo") == "q.fifo"

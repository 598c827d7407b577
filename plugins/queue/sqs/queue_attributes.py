"""The attributes of an SQS queue are settings of the queue and of its group `default`.

What only SQS knows is kept in tags of the queue that begin with `TAG_PREFIX`; Amazon keeps this
beginning from its customers' tags, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from penstock.plugins.queue.config import DEFAULT_GROUP
from penstock.plugins.queue.engines.contract import (
    GroupSpec,
    QueueOutline,
    QueueSnapshot,
    QueueSpec,
)
from penstock.plugins.queue.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    UNSUPPORTED_OPERATION,
    SqsError,
    invalid_parameter,
)
from penstock.plugins.queue.strategies.message_key import KEY_PROPERTY

ACCOUNT: Final = "000000000000"
"""The only account, which stands in URLs and ARNs."""
FIFO_SUFFIX: Final = ".fifo"
TAG_PREFIX: Final = "aws:sqs:"
RESERVED_TAG_PREFIX: Final = "aws:"

MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""The largest message, and the largest batch, as at Amazon."""
MAX_VISIBILITY_SECONDS: Final = 12 * 3600
MAX_DELAY_SECONDS: Final = 900
MAX_WAIT_SECONDS: Final = 20
DEFAULT_RETENTION_SECONDS: Final = 4 * 24 * 3600
"""The retention of queues that are created over SQS, as at Amazon."""

_MAX_RECEIVES: Final = 1_000
_MAX_SOURCE_QUEUES: Final = 10
_MAX_DIGITS: Final = 9
_WHOLE_NUMBERS: Final = {
    "DelaySeconds": (0, MAX_DELAY_SECONDS),
    "MaximumMessageSize": (1024, MAX_MESSAGE_BYTES),
    "MessageRetentionPeriod": (60, 14 * 24 * 3600),
    "ReceiveMessageWaitTimeSeconds": (0, MAX_WAIT_SECONDS),
    "VisibilityTimeout": (0, MAX_VISIBILITY_SECONDS),
}
_CHOICES: Final = {
    "ContentBasedDeduplication": ("false", "true"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_TAG_DEFAULTS: Final = {
    "MaximumMessageSize": str(MAX_MESSAGE_BYTES),
    "ReceiveMessageWaitTimeSeconds": "0",
}
_COMPUTED: Final = frozenset(
    {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesDelayed",
        "ApproximateNumberOfMessagesNotVisible",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "QueueArn",
    }
)
_REFUSED: Final = {
    "KmsDataKeyReusePeriodSeconds": "messages are not encrypted in the storage",
    "KmsMasterKeyId": "messages are not encrypted in the storage",
    "Policy": "the roles in the file of tokens say who may do what",
}
_WITHOUT_EFFECT: Final = (*_REFUSED, "SqsManagedSseEnabled")
_KNOWN: Final = frozenset(
    {
        "All",
        "FifoQueue",
        "RedriveAllowPolicy",
        "RedrivePolicy",
        "SqsManagedSseEnabled",
        *_WHOLE_NUMBERS,
        *_CHOICES,
        *_COMPUTED,
        *_REFUSED,
    }
)


class QueueSettings(NamedTuple):
    """A queue as SQS sees it.

    Attributes:
        group: the settings of its group `default`.
    """

    spec: QueueSpec
    group: GroupSpec

    def tag(self, name: str) -> str:
        """Return an attribute that only SQS knows."""
        return self.spec.tags.get(TAG_PREFIX + name) or _default_of(name)

    def with_tag(self, name: str, value: str) -> QueueSettings:
        """Return the settings with such an attribute; "" removes it."""
        tags = {key: tag for key, tag in self.spec.tags.items() if key != TAG_PREFIX + name}
        if value:
            tags[TAG_PREFIX + name] = value
        return self._replace(spec=replace(self.spec, tags=tags))


def _default_of(name: str) -> str:
    return _CHOICES[name][0] if name in _CHOICES else _TAG_DEFAULTS.get(name, "")


def is_fifo(name: str) -> bool:
    """Say whether a queue is a FIFO queue, by its name."""
    return name.endswith(FIFO_SUFFIX)


def new_group(name: str) -> GroupSpec:
    """Return the settings of a group `default` where a queue has none."""
    return GroupSpec(order="key" if is_fifo(name) else "any")


def new_settings(name: str) -> QueueSettings:
    """Return the settings of a new queue without attributes."""
    key = f"property:{KEY_PROPERTY}" if is_fifo(name) else None
    spec = QueueSpec(key=key, retention_seconds=DEFAULT_RETENTION_SECONDS)
    return QueueSettings(spec, new_group(name))


def settings_of(name: str, held: QueueOutline | QueueSnapshot) -> QueueSettings:
    """Return the settings of a queue that exists."""
    group = held.groups.get(DEFAULT_GROUP)
    return QueueSettings(held.spec, new_group(name) if group is None else group.spec)


def arn_of(name: str, region: str) -> str:
    """Return a queue's ARN, with the region that the caller is configured with."""
    return f"arn:aws:sqs:{region}:{ACCOUNT}:{name}"


def name_of_arn(parameter: str, arn: str) -> str:
    """Return the name of a queue from its ARN; region and account do not matter.

    Raises:
        SqsError: it is no ARN of a queue.
    """
    parts = arn.split(":")
    if len(parts) != 6 or parts[:1] + parts[2:3] != ["arn", "sqs"] or not parts[5]:
        raise invalid_parameter(parameter, arn, "arn:aws:sqs:REGION:ACCOUNT:QUEUE")
    return parts[5]


def changed(
    name: str,
    settings: QueueSettings,
    attributes: Any,
    spec_of: Callable[[str], QueueSpec | None],
    *,
    ignores: bool = False,
) -> QueueSettings:
    """Return settings with attributes of a request.

    Raises:
        SqsError: an attribute or its value is not allowed.
    """
    if not isinstance(attributes, dict):
        raise invalid_parameter("Attributes", attributes, "an object")
    for attribute, value in attributes.items():
        if attribute not in _KNOWN or attribute == "All" or attribute in _COMPUTED:
            raise SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {attribute[:80]}.")
        if not isinstance(value, str):
            raise _bad_value(attribute, value, "a text")
        if ignores and attribute in _WITHOUT_EFFECT:
            settings = settings.with_tag(attribute, value)
        else:
            settings = _change_one(name, settings, attribute, value, spec_of)
    return settings


def _change_one(
    name: str,
    settings: QueueSettings,
    attribute: str,
    value: str,
    spec_of: Callable[[str], QueueSpec | None],
) -> QueueSettings:
    if attribute in _REFUSED:
        if value:
            why = _REFUSED[attribute]
            raise SqsError(UNSUPPORTED_OPERATION, f"{attribute} is not supported: {why}.")
        return settings
    if attribute in _WHOLE_NUMBERS:
        return _with_number(settings, attribute, value)
    if attribute == "RedrivePolicy":
        return _with_redrive_policy(name, settings, value, spec_of)
    if attribute == "RedriveAllowPolicy":
        return settings.with_tag(attribute, _checked_allow_policy(value))
    allowed: tuple[str, ...] = _CHOICES.get(attribute, ("false",))
    if attribute == "FifoQueue" and is_fifo(name):
        allowed = ("true",)
    if value.lower() not in (choice.lower() for choice in allowed):
        raise _bad_value(attribute, value, " or ".join(allowed))
    if attribute not in _CHOICES:
        return settings
    if not is_fifo(name):
        raise SqsError(
            INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {attribute}: it is for FIFO queues."
        )
    chosen = next(choice for choice in allowed if choice.lower() == value.lower())
    return settings.with_tag(attribute, "" if chosen == allowed[0] else chosen)


def _with_number(settings: QueueSettings, attribute: str, value: str) -> QueueSettings:
    least, most = _WHOLE_NUMBERS[attribute]
    is_short = len(value) <= _MAX_DIGITS
    if not (is_short and value.isascii() and value.isdigit() and least <= int(value) <= most):
        raise _bad_value(attribute, value, f"a whole number of {least} to {most}")
    number = float(value)
    if attribute == "DelaySeconds":
        return settings._replace(spec=replace(settings.spec, delay_seconds=number))
    if attribute == "MessageRetentionPeriod":
        return settings._replace(spec=replace(settings.spec, retention_seconds=number))
    if attribute == "VisibilityTimeout":
        return settings._replace(group=replace(settings.group, visibility_timeout=number))
    text = str(int(value))
    return settings.with_tag(attribute, "" if text == _TAG_DEFAULTS[attribute] else text)


def _with_redrive_policy(
    name: str, settings: QueueSettings, text: str, spec_of: Callable[[str], QueueSpec | None]
) -> QueueSettings:
    attribute = "RedrivePolicy"
    policy = _json_object(attribute, text)
    if not policy:
        group = replace(settings.group, max_receives=None, dead_letter_queue=None)
        return settings._replace(group=group)
    if set(policy) != {"deadLetterTargetArn", "maxReceiveCount"}:
        raise _bad_value(attribute, text, "deadLetterTargetArn and maxReceiveCount")
    try:
        max_receives = int(policy["maxReceiveCount"])
    except (TypeError, ValueError, OverflowError):
        max_receives = 0
    if not 1 <= max_receives <= _MAX_RECEIVES:
        raise _bad_value(attribute, text, f"a maxReceiveCount of 1 to {_MAX_RECEIVES}")
    target = name_of_arn("deadLetterTargetArn", str(policy["deadLetterTargetArn"]))
    spec = spec_of(target)
    if spec is None or target == name:
        allowed = "another queue that exists as deadLetterTargetArn"
        raise invalid_parameter(attribute, text, allowed)
    if is_fifo(target) != is_fifo(name):
        kind = "a FIFO" if is_fifo(name) else "a standard"
        raise invalid_parameter(attribute, text, f"{kind} queue, as the queue itself is")
    if not _may_redrive(spec, name):
        allowed = f"a queue whose RedriveAllowPolicy lets {name} use it"
        raise invalid_parameter(attribute, text, allowed)
    group = replace(settings.group, max_receives=max_receives, dead_letter_queue=target)
    return settings._replace(group=group)


def _may_redrive(target: QueueSpec, source: str) -> bool:
    policy = json.loads(target.tags.get(f"{TAG_PREFIX}RedriveAllowPolicy", "{}"))
    permission = policy.get("redrivePermission", "allowAll")
    if permission == "byQueue":
        names = [name_of_arn("sourceQueueArns", arn) for arn in policy["sourceQueueArns"]]
        return source in names
    return bool(permission == "allowAll")


def _checked_allow_policy(text: str) -> str:
    attribute = "RedriveAllowPolicy"
    policy = _json_object(attribute, text)
    if not policy:
        return ""
    permission = policy.get("redrivePermission")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise _bad_value(attribute, text, "redrivePermission allowAll, denyAll or byQueue")
    arns = policy.get("sourceQueueArns", [])
    is_list = isinstance(arns, list) and len(arns) <= _MAX_SOURCE_QUEUES
    if not is_list or bool(arns) != (permission == "byQueue"):
        allowed = f"1 to {_MAX_SOURCE_QUEUES} sourceQueueArns, with byQueue only"
        raise _bad_value(attribute, text, allowed)
    for arn in arns:
        name_of_arn("sourceQueueArns", str(arn))
    return json.dumps(policy)


def _json_object(attribute: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _bad_value(attribute, text, "a JSON object")
    return found


def shown(name: str, snapshot: QueueSnapshot, names: list[str], region: str) -> dict[str, str]:
    """Return attributes of a queue.

    Raises:
        SqsError: there is no such attribute.
    """
    for wanted in names:
        if wanted not in _KNOWN:
            raise SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {wanted[:80]}.")
    found = _all_attributes(name, snapshot, region)
    if "All" in names:
        return found
    return {wanted: found[wanted] for wanted in names if wanted in found}


def _all_attributes(name: str, snapshot: QueueSnapshot, region: str) -> dict[str, str]:
    settings = settings_of(name, snapshot)
    spec, group = settings
    held = snapshot.groups.get(DEFAULT_GROUP)
    waiting, leased, delayed = (
        (snapshot.messages, 0, 0) if held is None else (held.waiting, held.leased, held.delayed)
    )
    found = {
        "ApproximateNumberOfMessages": str(max(0, waiting - leased - delayed)),
        "ApproximateNumberOfMessagesDelayed": str(delayed),
        "ApproximateNumberOfMessagesNotVisible": str(leased),
        "DelaySeconds": f"{spec.delay_seconds:g}",
        "QueueArn": arn_of(name, region),
        "SqsManagedSseEnabled": "false",
        "VisibilityTimeout": f"{group.visibility_timeout:g}",
    }
    if spec.retention_seconds is not None:
        found["MessageRetentionPeriod"] = f"{spec.retention_seconds:.15g}"
    if is_fifo(name):
        found["FifoQueue"] = "true"
        found |= {choice: settings.tag(choice) for choice in _CHOICES}
    for tag in (
        *_TAG_DEFAULTS,
        *_WITHOUT_EFFECT,
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "RedriveAllowPolicy",
    ):
        if value := settings.tag(tag):
            found[tag] = value
    if group.dead_letter_queue is not None and group.max_receives is not None:
        found["RedrivePolicy"] = json.dumps(
            {
                "deadLetterTargetArn": arn_of(group.dead_letter_queue, region),
                "maxReceiveCount": group.max_receives,
            }
        )
    return found


def _bad_value(attribute: str, value: object, allowed: str) -> SqsError:
    text = str(value)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return SqsError(
        INVALID_ATTRIBUTE_VALUE,
        f"Invalid value for the parameter {attribute}: read {text}; allowed: {allowed}.",
    )

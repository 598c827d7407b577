"""The actions of the SQS API.

Each action has parameters and a result by the names of the JSON protocol, and raises `SqsError` or
an error of the engine. Messages are received from the group `default` of a queue. The first receive
creates it where it is missing, which needs the role `admin`: a group holds messages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from logging import Logger
from typing import Any, Final, NamedTuple

from penstock.broker.config.key_types import NAME_FORM
from penstock.plugins.queue.access import Caller, Role
from penstock.plugins.queue.append_buffer import DROP_REASONS, Stored
from penstock.plugins.queue.config import DEFAULT_GROUP
from penstock.plugins.queue.engines.contract import (
    Action,
    ExistsError,
    QueueOutline,
    QueueSpec,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.logical_queue import BusyError, ReceiveRequest
from penstock.plugins.queue.service import QueueService
from penstock.plugins.queue.sqs import messages, move_tasks, queue_attributes
from penstock.plugins.queue.sqs.errors import (
    ACCESS_DENIED,
    BATCH_REQUEST_TOO_LONG,
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    MESSAGE_NOT_INFLIGHT,
    MISSING_PARAMETER,
    OVER_LIMIT,
    QUEUE_DOES_NOT_EXIST,
    QUEUE_NAME_EXISTS,
    RECEIPT_HANDLE_IS_INVALID,
    REQUEST_THROTTLED,
    RESOURCE_NOT_FOUND,
    SERVICE_UNAVAILABLE,
    STORAGE_FULL,
    UNKNOWN_ACTION,
    UNSUPPORTED_OPERATION,
    Fault,
    SqsError,
    invalid_parameter,
)
from penstock.plugins.queue.sqs.move_tasks import MoveTasks
from penstock.plugins.queue.sqs.parameters import (
    entries,
    integer,
    optional_integer,
    optional_text,
    text,
    texts,
)
from penstock.plugins.queue.sqs.queue_attributes import (
    ACCOUNT,
    FIFO_SUFFIX,
    MAX_MESSAGE_BYTES,
    MAX_VISIBILITY_SECONDS,
    MAX_WAIT_SECONDS,
    RESERVED_TAG_PREFIX,
    QueueSettings,
    arn_of,
    changed,
    is_fifo,
    name_of_arn,
    settings_of,
)
from penstock.plugins.queue.wire.frames import ReceivedMessage
from penstock.plugins.web.cooperative_work import Slicer

MAX_RECEIVED: Final = 10
"""The most messages of one ReceiveMessage, as at Amazon."""
MAX_LISTED: Final = 1_000
"""The most queues of one list, as at Amazon."""
MAX_TAGS: Final = 50
MAX_TAG_KEY_CHARACTERS: Final = 128
MAX_TAG_VALUE_CHARACTERS: Final = 256

_ROLES: Final[Sequence[Role]] = ("read", "write", "admin")
_STORING_FAULTS: Final[Mapping[str, Fault]] = {
    "queue_full": REQUEST_THROTTLED,
    "pending_full": REQUEST_THROTTLED,
    "storage_full": STORAGE_FULL,
    "unreadable": INVALID_MESSAGE_CONTENTS,
}
_STORED_REASONS: Final = ("", "duplicate")


class SqsRequest(NamedTuple):
    """A request whose sender is known.

    Attributes:
        action: the action, such as ``SendMessage``.
        parameters: the parameters by their names in the JSON protocol.
        access_key_id: the access key of its signature; "" for none.
        url: the address of the server, as the caller wrote it, such as ``http://127.0.0.1:9324``.
        path: the path of the request; older SDKs name the queue by it.
        undo: is closed where the sender leaves before its answer is written.
    """

    action: str
    parameters: Mapping[str, Any]
    caller: Caller
    access_key_id: str
    region: str
    url: str
    path: str
    undo: ExitStack

    @property
    def publisher(self) -> str:
        """Name of the caller; the access key where no tokens are needed."""
        return self.caller.name or self.access_key_id


class SqsActions:
    """The actions by name."""

    def __init__(
        self,
        service: QueueService,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        slicer: Slicer,
        logger: Logger,
        *,
        ignores: bool = False,
    ) -> None:
        self._service = service
        self._ignores = ignores
        self._slicer = slicer
        self._clock = clock
        self._wall_clock = wall_clock
        self._tasks = MoveTasks(service, wall_clock, logger)
        self._actions: Mapping[str, Callable[[SqsRequest], Awaitable[dict[str, Any]]]] = {
            "AddPermission": self._refuse_permission,
            "CancelMessageMoveTask": self._cancel_message_move_task,
            "ChangeMessageVisibility": self._change_message_visibility,
            "ChangeMessageVisibilityBatch": self._change_message_visibility_batch,
            "CreateQueue": self._create_queue,
            "DeleteMessage": self._delete_message,
            "DeleteMessageBatch": self._delete_message_batch,
            "DeleteQueue": self._delete_queue,
            "GetQueueAttributes": self._get_queue_attributes,
            "GetQueueUrl": self._get_queue_url,
            "ListDeadLetterSourceQueues": self._list_dead_letter_source_queues,
            "ListMessageMoveTasks": self._list_message_move_tasks,
            "ListQueueTags": self._list_queue_tags,
            "ListQueues": self._list_queues,
            "PurgeQueue": self._purge_queue,
            "ReceiveMessage": self._receive_message,
            "RemovePermission": self._refuse_permission,
            "SendMessage": self._send_message,
            "SendMessageBatch": self._send_message_batch,
            "SetQueueAttributes": self._set_queue_attributes,
            "StartMessageMoveTask": self._start_message_move_task,
            "TagQueue": self._tag_queue,
            "UntagQueue": self._untag_queue,
        }

    async def run(self, request: SqsRequest) -> dict[str, Any]:
        """Do what a request asks for and return its result.

        Raises:
            SqsError: it is refused.
            PenstockError: the engine or the service refuses it.
        """
        action = self._actions.get(request.action)
        if action is None:
            allowed = ", ".join(self._actions)
            shown = request.action[:80]
            raise SqsError(UNKNOWN_ACTION, f"action: read {shown}; allowed: {allowed}")
        return await action(request)

    async def close(self) -> None:
        """End tasks in the background; what they have moved stays moved."""
        await self._tasks.close()

    # Queues

    async def _create_queue(self, request: SqsRequest) -> dict[str, Any]:
        name = text(request.parameters, "QueueName")
        _check_new_name(name)
        self._check_role(request, "admin", name)
        attributes = request.parameters.get("Attributes", {})
        wants_fifo = isinstance(attributes, dict) and attributes.get("FifoQueue") == "true"
        if is_fifo(name) and not wants_fifo:
            raise invalid_parameter("QueueName", name, f"without {FIFO_SUFFIX}, or FifoQueue true")
        tags = _checked_tags(
            request.parameters.get("tags", request.parameters.get("Tags", {})), "tags"
        )
        settings = self._changed(name, queue_attributes.new_settings(name), attributes)
        now = str(int(self._wall_clock()))
        settings = settings.with_tag("CreatedTimestamp", now).with_tag("LastModifiedTimestamp", now)
        spec = replace(
            settings.spec,
            tags={**settings.spec.tags, **tags},
            groups={DEFAULT_GROUP: settings.group},
        )
        if self._spec(name) is None:
            try:
                await self._service.create(name, spec)
            except ExistsError:  # another request created it at the same time
                self._check_same(name, attributes)
        else:
            self._check_same(name, attributes)
        return {"QueueUrl": _url_of(request, name)}

    def _changed(self, name: str, settings: QueueSettings, attributes: Any) -> QueueSettings:
        return changed(name, settings, attributes, self._spec, ignores=self._ignores)

    def _check_same(self, name: str, attributes: Any) -> None:
        """Refuse to create a queue that exists with other values of the attributes."""
        settings = settings_of(name, self._service.engine.outline(name))
        if self._changed(name, settings, attributes) != settings:
            raise SqsError(
                QUEUE_NAME_EXISTS,
                "A queue already exists with the same name and a different value for an "
                "attribute; GetQueueAttributes shows its values.",
            )

    async def _delete_queue(self, request: SqsRequest) -> dict[str, Any]:
        name, _ = self._queue(request, "admin")
        await self._service.delete(name)
        return {}

    async def _list_queues(self, request: SqsRequest) -> dict[str, Any]:
        prefix = optional_text(request.parameters, "QueueNamePrefix") or ""
        names = [name for name in self._visible(request) if name.startswith(prefix)]
        return _listed(request, "QueueUrls", names)

    async def _get_queue_url(self, request: SqsRequest) -> dict[str, Any]:
        name = text(request.parameters, "QueueName")
        self._check_role(request, None, name)
        self._service.engine.outline(name)
        return {"QueueUrl": _url_of(request, name)}

    async def _get_queue_attributes(self, request: SqsRequest) -> dict[str, Any]:
        name, _ = self._queue(request, None)
        names = texts(request.parameters, "AttributeNames")
        snapshot = self._service.engine.snapshot(name)
        found = queue_attributes.shown(name, snapshot, names, request.region)
        return {"Attributes": found} if found else {}

    async def _set_queue_attributes(self, request: SqsRequest) -> dict[str, Any]:
        name, outline = self._queue(request, "admin")
        old = settings_of(name, outline)
        attributes = request.parameters.get("Attributes")
        if not attributes:
            raise SqsError(
                MISSING_PARAMETER, "The request must contain the parameter Attribute.Name."
            )
        new = self._changed(name, old, attributes)
        if new == old:
            return {}
        new = new.with_tag("LastModifiedTimestamp", str(int(self._wall_clock())))
        await self._service.change(name, new.spec)
        await self._have_group(name, outline)
        if new.group != old.group:
            await self._service.change_group(name, DEFAULT_GROUP, new.group)
        return {}

    async def _purge_queue(self, request: SqsRequest) -> dict[str, Any]:
        name, _ = self._queue(request, "admin")
        await self._service.purge(name)
        return {}

    async def _tag_queue(self, request: SqsRequest) -> dict[str, Any]:
        name, outline = self._queue(request, "admin")
        tags = _checked_tags(request.parameters.get("Tags", {}), "Tags")
        if not tags:
            raise SqsError(MISSING_PARAMETER, "The request must contain the parameter Tags.")
        return await self._retag(name, outline, {**outline.spec.tags, **tags})

    async def _untag_queue(self, request: SqsRequest) -> dict[str, Any]:
        name, outline = self._queue(request, "admin")
        keys = set(texts(request.parameters, "TagKeys"))
        if not keys:
            raise SqsError(MISSING_PARAMETER, "The request must contain the parameter TagKeys.")
        kept = {
            key: value
            for key, value in outline.spec.tags.items()
            if key not in keys or key.startswith(RESERVED_TAG_PREFIX)
        }
        return await self._retag(name, outline, kept)

    async def _retag(
        self, name: str, outline: QueueOutline, tags: dict[str, str]
    ) -> dict[str, Any]:
        if len(_user_tags(tags)) > MAX_TAGS:
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                f"Too many tags added for queue {name}: at most {MAX_TAGS} are allowed.",
            )
        await self._service.change(name, replace(outline.spec, tags=tags))
        return {}

    async def _list_queue_tags(self, request: SqsRequest) -> dict[str, Any]:
        _, outline = self._queue(request, None)
        return {"Tags": _user_tags(outline.spec.tags)}

    async def _refuse_permission(self, _: SqsRequest) -> dict[str, Any]:
        raise SqsError(
            UNSUPPORTED_OPERATION,
            "Permissions are not supported: the roles in the file of tokens say who may do what.",
        )

    # Dead letters

    async def _list_dead_letter_source_queues(self, request: SqsRequest) -> dict[str, Any]:
        name, _ = self._queue(request, None)
        return _listed(request, "queueUrls", self._sources_of(name, self._visible(request)))

    def _sources_of(self, dead_letter_queue: str, names: Sequence[str]) -> list[str]:
        """Return the queues with a group whose dead letters go to a queue."""
        found = []
        for name in names:
            groups = self._service.engine.outline(name).groups.values()
            if any(group.spec.dead_letter_queue == dead_letter_queue for group in groups):
                found.append(name)
        return found

    async def _start_message_move_task(self, request: SqsRequest) -> dict[str, Any]:
        source = self._queue_of_arn(request, "SourceArn", "admin")
        destination = None
        if request.parameters.get("DestinationArn"):
            destination = self._queue_of_arn(request, "DestinationArn", "write")
        per_second = optional_integer(
            request.parameters, "MaxNumberOfMessagesPerSecond", 1, move_tasks.MAX_PER_SECOND
        )
        if not self._sources_of(source, self._service.names()):
            raise SqsError(
                INVALID_PARAMETER_VALUE, "Source queue must be configured as a Dead Letter Queue."
            )
        if destination == source:
            raise invalid_parameter("DestinationArn", destination, "another queue than the source")
        task = self._tasks.start(source, destination, per_second)
        return {"TaskHandle": task.handle}

    async def _list_message_move_tasks(self, request: SqsRequest) -> dict[str, Any]:
        source = self._queue_of_arn(request, "SourceArn", "admin")
        most = optional_integer(request.parameters, "MaxResults", 1, move_tasks.KEPT_TASKS) or 1

        def arn(name: str) -> str:
            return arn_of(name, request.region)

        return {"Results": [move_tasks.shown(one, arn) for one in self._tasks.of(source, most)]}

    async def _cancel_message_move_task(self, request: SqsRequest) -> dict[str, Any]:
        task = self._tasks.find(text(request.parameters, "TaskHandle"))
        self._check_role(request, "admin", task.source)
        return {"ApproximateNumberOfMessagesMoved": self._tasks.cancel(task)}

    def _queue_of_arn(self, request: SqsRequest, parameter: str, role: Role) -> str:
        name = name_of_arn(parameter, text(request.parameters, parameter))
        self._check_role(request, role, name)
        if self._spec(name) is None:
            raise SqsError(
                RESOURCE_NOT_FOUND,
                f"The resource that you specified for {parameter} doesn't exist.",
            )
        return name

    # Messages

    async def _send_message(self, request: SqsRequest) -> dict[str, Any]:
        name, outline = self._queue(request, "write")
        prepared = messages.prepare(request.parameters, self._target(request, name, outline))
        (stored,) = await self._service.queue(name).buffer.store([prepared.new])
        if stored.reason not in _STORED_REASONS:
            raise _not_stored(stored.reason)
        return prepared.result | _sequence(name, stored)

    async def _send_message_batch(self, request: SqsRequest) -> dict[str, Any]:
        name, outline = self._queue(request, "write")
        target = self._target(request, name, outline)
        asked = entries(request.parameters)
        outcome = _BatchOutcome(asked)
        prepared = await self._slicer.run(_prepared(asked, target, outcome))
        n_bytes = sum(one.size_bytes for one in prepared.values())
        if n_bytes > MAX_MESSAGE_BYTES:
            raise SqsError(
                BATCH_REQUEST_TOO_LONG,
                f"Batch requests cannot be longer than {MAX_MESSAGE_BYTES} bytes. You have sent "
                f"{n_bytes} bytes.",
            )
        results: Sequence[Stored] = ()
        if prepared:
            results = await self._service.queue(name).buffer.store(
                [one.new for one in prepared.values()]
            )
        for (entry_id, one), stored in zip(prepared.items(), results, strict=True):
            if stored.reason in _STORED_REASONS:
                outcome.succeed(entry_id, one.result | _sequence(name, stored))
            else:
                outcome.fail(entry_id, _not_stored(stored.reason))
        return outcome.result

    async def _receive_message(self, request: SqsRequest) -> dict[str, Any]:
        name, outline = self._queue(request, "read")
        parameters = request.parameters
        system = texts(parameters, "AttributeNames") + texts(
            parameters, "MessageSystemAttributeNames"
        )
        wanted = messages.Wanted(system, texts(parameters, "MessageAttributeNames"))
        most = optional_integer(parameters, "MaxNumberOfMessages", 1, MAX_RECEIVED)
        wait = optional_integer(parameters, "WaitTimeSeconds", 0, MAX_WAIT_SECONDS)
        visibility = optional_integer(parameters, "VisibilityTimeout", 0, MAX_VISIBILITY_SECONDS)
        if wait is None:
            settings = settings_of(name, outline)
            wait = int(settings.tag("ReceiveMessageWaitTimeSeconds"))
        if DEFAULT_GROUP not in outline.groups:
            self._check_role(request, "admin", name, f"as there is no group {DEFAULT_GROUP} yet")
            await self._have_group(name, outline)
        spec = outline.spec
        received = await self._received(
            name,
            ReceiveRequest(
                max_messages=min(most or 1, spec.n_max),
                wait_seconds=min(float(wait), spec.max_wait_seconds),
                visibility_timeout=None if visibility is None else float(visibility),
            ),
        )
        give_back = self._service.engine.give_back
        request.undo.callback(give_back, name, DEFAULT_GROUP, received)
        source = messages.Source(
            name, outline.incarnation, spec.key, spec.sqs_body, request.region, self._wall_clock()
        )
        shown = await self._slicer.run(_shown(received, source, wanted))
        return {"Messages": shown} if shown else {}

    async def _received(self, name: str, request: ReceiveRequest) -> list[ReceivedMessage]:
        try:
            return await self._service.queue(name).receive(DEFAULT_GROUP, request)
        except BusyError as error:
            group = self._service.engine.outline(name).groups[DEFAULT_GROUP]
            is_over = group.leased >= group.spec.max_leased_messages
            raise SqsError(OVER_LIMIT if is_over else REQUEST_THROTTLED, str(error)) from None

    async def _delete_message(self, request: SqsRequest) -> dict[str, Any]:
        name, _ = self._queue(request, "read")
        handle = text(request.parameters, "ReceiptHandle")
        failed = await self._settle(name, "ack", [handle])
        if error := _delete_error(failed.get(0)):
            raise error
        return {}

    async def _delete_message_batch(self, request: SqsRequest) -> dict[str, Any]:
        return await self._settle_entries(request, lambda _: ("ack", 0.0), _delete_error)

    async def _change_message_visibility(self, request: SqsRequest) -> dict[str, Any]:
        name, _ = self._queue(request, "read")
        handle = text(request.parameters, "ReceiptHandle")
        action, seconds = _visibility(request.parameters)
        failed = await self._settle(name, action, [handle], seconds)
        if error := _visibility_error(failed.get(0)):
            raise error
        return {}

    async def _change_message_visibility_batch(self, request: SqsRequest) -> dict[str, Any]:
        return await self._settle_entries(request, _visibility, _visibility_error)

    async def _settle(
        self, name: str, action: Action, handles: Sequence[str], seconds: float = 0.0
    ) -> Mapping[int, str]:
        """Settle receives; where there is no group `default`, nobody has received anything."""
        try:
            return await self._service.settle(name, DEFAULT_GROUP, action, handles, seconds)
        except UnknownGroupError:
            return dict.fromkeys(range(len(handles)), "unknown")

    async def _settle_entries(
        self,
        request: SqsRequest,
        way_of: Callable[[Mapping[str, Any]], tuple[Action, float]],
        error_of: Callable[[str | None], SqsError | None],
    ) -> dict[str, Any]:
        """Settle the receipt handles of a batch."""
        name, _ = self._queue(request, "read")
        asked = entries(request.parameters)
        outcome = _BatchOutcome(asked)
        by_way: dict[tuple[Action, float], dict[str, str]] = {}
        for entry in asked:
            try:
                handle = text(entry, "ReceiptHandle")
                by_way.setdefault(way_of(entry), {})[entry["Id"]] = handle
            except SqsError as error:
                outcome.fail(entry["Id"], error)
        for (action, seconds), handles in by_way.items():
            failed = await self._settle(name, action, list(handles.values()), seconds)
            for index, entry_id in enumerate(handles):
                refused = error_of(failed.get(index))
                if refused is None:
                    outcome.succeed(entry_id, {})
                else:
                    outcome.fail(entry_id, refused)
        return outcome.result

    # What several actions need

    def _queue(self, request: SqsRequest, role: Role | None) -> tuple[str, QueueOutline]:
        """Return the queue of a request, in which the caller has the role; None for any role."""
        url = optional_text(request.parameters, "QueueUrl") or request.path
        name = url.rstrip("/").rpartition("/")[2]
        if not name:
            raise SqsError(MISSING_PARAMETER, "The request must contain the parameter QueueUrl.")
        self._check_role(request, role, name)
        return name, self._service.engine.outline(name)

    def _check_role(
        self, request: SqsRequest, role: Role | None, name: str, because: str = ""
    ) -> None:
        """Check that the caller has a role in a queue.

        Raises:
            SqsError: the caller has another role, or none.
        """
        caller = request.caller
        if role is not None and caller.may(role, name):
            return
        if any(caller.may(one, name) for one in _ROLES):
            if role is None:
                return
        elif role != "admin":
            raise unknown_queue()
        raise SqsError(
            ACCESS_DENIED,
            f"{caller.name} may not call {request.action} on queue {name[:80]}: it needs the role "
            f"{role}{because and f', {because}'}.",
        )

    def _visible(self, request: SqsRequest) -> list[str]:
        """Return the queues in which the caller has any role."""
        caller = request.caller
        return [
            name for name in self._service.names() if any(caller.may(role, name) for role in _ROLES)
        ]

    def _spec(self, name: str) -> QueueSpec | None:
        try:
            return self._service.engine.outline(name).spec
        except UnknownQueueError:
            return None

    async def _have_group(self, name: str, outline: QueueOutline) -> None:
        if DEFAULT_GROUP not in outline.groups:
            await self._service.create_group(name, DEFAULT_GROUP, queue_attributes.new_group(name))

    def _target(self, request: SqsRequest, name: str, outline: QueueOutline) -> messages.Target:
        return messages.Target(
            name,
            outline.incarnation,
            settings_of(name, outline),
            outline.spec.sqs_body,
            request.publisher,
            self._clock(),
        )


class _BatchOutcome:
    """What became of the entries of a batch."""

    def __init__(self, asked: Sequence[Mapping[str, Any]]) -> None:
        self._asked = [entry["Id"] for entry in asked]
        self._done: dict[str, dict[str, Any]] = {}
        self._failed: dict[str, dict[str, Any]] = {}

    def succeed(self, entry_id: str, result: Mapping[str, Any]) -> None:
        """Note an entry that is done."""
        self._done[entry_id] = {"Id": entry_id, **result}

    def fail(self, entry_id: str, error: SqsError) -> None:
        """Note an entry that is refused, or that failed."""
        fault = error.fault
        self._failed[entry_id] = {
            "Id": entry_id,
            "SenderFault": fault.is_senders,
            "Code": fault.shown_code,
            "Message": str(error),
        }

    @property
    def result(self) -> dict[str, Any]:
        """What the sender is told, in the order of the entries."""
        return {
            "Successful": [self._done[one] for one in self._asked if one in self._done],
            "Failed": [self._failed[one] for one in self._asked if one in self._failed],
        }


def _prepared(
    asked: Sequence[Mapping[str, Any]], target: messages.Target, outcome: _BatchOutcome
) -> Generator[None, None, dict[str, messages.Prepared]]:
    """Return the messages of a batch by the ids of their entries, each in a step."""
    prepared = {}
    for entry in asked:
        try:
            prepared[entry["Id"]] = messages.prepare(entry, target)
        except SqsError as error:
            outcome.fail(entry["Id"], error)
        yield
    return prepared


def _shown(
    received: Sequence[ReceivedMessage], source: messages.Source, wanted: messages.Wanted
) -> Generator[None, None, list[dict[str, Any]]]:
    """Return received messages as SQS has them, each in a step."""
    shown = []
    for message in received:
        shown.append(messages.shown(message, source, wanted))
        yield
    return shown


def unknown_queue() -> SqsError:
    """Return the error of a queue that does not exist, or that the caller has no role in."""
    return SqsError(
        QUEUE_DOES_NOT_EXIST, "The specified queue does not exist or you do not have access to it."
    )


def _check_new_name(name: str) -> None:
    stem = name.removesuffix(FIFO_SUFFIX)
    if not NAME_FORM.fullmatch(name) or "." in stem:
        raise invalid_parameter(
            "QueueName",
            name,
            "1 to 80 alphanumeric characters, hyphens and underscores, with a letter or digit "
            f"first; names of FIFO queues end in {FIFO_SUFFIX}",
        )


def _url_of(request: SqsRequest, name: str) -> str:
    return f"{request.url}/{ACCOUNT}/{name}"


def _listed(request: SqsRequest, member: str, names: Sequence[str]) -> dict[str, Any]:
    """Return a page of a list of queues."""
    most = optional_integer(request.parameters, "MaxResults", 1, MAX_LISTED)
    token = optional_text(request.parameters, "NextToken")
    if token:
        try:
            after = base64.b64decode(token, b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raise invalid_parameter("NextToken", token, "what the page before told") from None
        names = [name for name in names if name > after]
    page = names[: most or MAX_LISTED]
    found: dict[str, Any] = {member: [_url_of(request, name) for name in page]}
    if most and len(names) > len(page):
        found["NextToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
    return found if page or member != "QueueUrls" else {}


def _checked_tags(raw: Any, parameter: str) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise invalid_parameter(parameter, raw, "an object")
    for key, value in raw.items():
        if not 1 <= len(key) <= MAX_TAG_KEY_CHARACTERS or key.startswith(RESERVED_TAG_PREFIX):
            raise invalid_parameter(
                parameter,
                key,
                f"keys of 1 to {MAX_TAG_KEY_CHARACTERS} characters that do not begin with "
                f"{RESERVED_TAG_PREFIX}",
            )
        if not isinstance(value, str) or len(value) > MAX_TAG_VALUE_CHARACTERS:
            allowed = f"values of at most {MAX_TAG_VALUE_CHARACTERS} characters"
            raise invalid_parameter(parameter, value, allowed)
    if len(raw) > MAX_TAGS:
        raise invalid_parameter(parameter, f"{len(raw)} tags", f"at most {MAX_TAGS}")
    return raw


def _user_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: tag for key, tag in tags.items() if not key.startswith(RESERVED_TAG_PREFIX)}


def _sequence(name: str, stored: Stored) -> dict[str, str]:
    if not is_fifo(name) or stored.offset < 0:
        return {}
    return {"SequenceNumber": messages.sequence_number(stored.offset)}


def _not_stored(reason: str) -> SqsError:
    fault = _STORING_FAULTS.get(reason, SERVICE_UNAVAILABLE)
    return SqsError(fault, f"The message was not stored: {DROP_REASONS.get(reason, reason)}.")


def _visibility(parameters: Mapping[str, Any]) -> tuple[Action, float]:
    """Return how a message is settled whose visibility changes, and for how many seconds."""
    seconds = integer(parameters, "VisibilityTimeout", 0, MAX_VISIBILITY_SECONDS)
    return ("extend", float(seconds)) if seconds else ("nack", 0.0)


def _delete_error(reason: str | None) -> SqsError | None:
    """Return the error of a handle that deletes nothing.

    Deleting twice is no error, nor is a handle of an older receive, as Amazon has it.
    """
    return _bad_handle() if reason == "unknown" else None


def _visibility_error(reason: str | None) -> SqsError | None:
    if reason == "unknown":
        return _bad_handle()
    if reason is None:
        return None
    return SqsError(
        MESSAGE_NOT_INFLIGHT,
        "The message is not in flight: it was deleted, its visibility timeout has ended, or it was "
        "received again.",
    )


def _bad_handle() -> SqsError:
    return SqsError(
        RECEIPT_HANDLE_IS_INVALID,
        "The input receipt handle is invalid: this server has not made it for this queue.",
    )

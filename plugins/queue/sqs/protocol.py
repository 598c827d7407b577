"""The two protocols of SQS: JSON, and the query protocol of older SDKs.

Theory of operation. The names of the JSON protocol are the names inside: an action and a dict of
parameters come in, a dict of results goes out. The query protocol has a form as its request and
XML as its answer, with a name of its own for each element of a list or a map; the tables below hold
these names. Binary values are base64 text in both.

What may be large is read and written by works for `penstock.plugins.web.cooperative_work.Slicer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import escape

from penstock.plugins.queue.sqs.errors import SERIALIZATION, UNKNOWN_ACTION, SqsError
from penstock.plugins.web.json_text import JsonTextError, read_json

JSON_CONTENT_TYPE: Final = "application/x-amz-json-1.0"
XML_CONTENT_TYPE: Final = "text/xml"
TARGET_PREFIX: Final = "AmazonSQS."

MAX_FORM_FIELDS: Final = 2_000
"""The most fields of a query request. Ten messages with ten attributes of three fields fit several
times."""

_FORM_CHARACTERS: Final = 4_096
"""How many characters of a form one step reads."""

_NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"

_LISTS: Final = {
    "ActionName": "Actions",
    "AttributeName": "AttributeNames",
    "AWSAccountId": "AWSAccountIds",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "SendMessageBatchRequestEntry": "Entries",
    "TagKey": "TagKeys",
}
_LIST_NAMES: Final = frozenset(_LISTS.values())
_MAPS: Final = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
_INTEGERS: Final = frozenset(
    {
        "DelaySeconds",
        "MaxNumberOfMessages",
        "MaxNumberOfMessagesPerSecond",
        "MaxResults",
        "VisibilityTimeout",
        "WaitTimeSeconds",
    }
)
_ELEMENTS: Final = {
    "Failed": "BatchResultErrorEntry",
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "Results": "ListMessageMoveTasksResultEntry",
    "queueUrls": "QueueUrl",
}
_PAIRS: Final = {name: (element, key, value) for element, (name, key, value) in _MAPS.items()}

_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


class Call(NamedTuple):
    """A request.

    Attributes:
        action: the action, such as ``SendMessage``.
        parameters: the parameters by their names in the JSON protocol.
    """

    action: str
    parameters: Mapping[str, Any]


def is_xml_text(text: str) -> bool:
    """Say whether all characters are allowed in XML 1.0, and so in the body of an SQS message."""
    return _NO_XML.search(text) is None


def read_json_call(target: str, body: bytes) -> Generator[None, None, Call]:
    """Return the request of a header ``X-Amz-Target`` and a body.

    Raises:
        SqsError: they are no request.
    """
    prefix, _, action = target.partition(".")
    if f"{prefix}." != TARGET_PREFIX:
        raise SqsError(UNKNOWN_ACTION, f"X-Amz-Target: read {target}; allowed: AmazonSQS.ACTION")
    try:
        parameters = (yield from read_json(body)) if body else {}
    except JsonTextError as error:
        raise SqsError(SERIALIZATION, f"body: no JSON ({str(error)[:80]})") from None
    if not isinstance(parameters, dict):
        raise SqsError(SERIALIZATION, "body: allowed: a JSON object")
    return Call(action, {key: value for key, value in parameters.items() if value is not None})


def read_query_call(query: str, body: bytes) -> Generator[None, None, Call]:
    """Return the request of a query and a form.

    Raises:
        SqsError: they are no request.
    """
    tree: dict[str, Any] = {}
    for text in (query, body):
        try:
            pairs = yield from _read_form(text.decode("ascii") if isinstance(text, bytes) else text)
        except ValueError as error:
            raise SqsError(SERIALIZATION, f"form: not readable ({str(error)[:80]})") from None
        for key, value in pairs:
            _plant(tree, key, value)
    action = tree.pop("Action", None)
    if not isinstance(action, str):
        raise SqsError(UNKNOWN_ACTION, "Action: read nothing; allowed: an action of Amazon SQS")
    return Call(action, _structure(tree))


def _read_form(text: str) -> Generator[None, None, list[tuple[str, str]]]:
    """Read a form as `urllib.parse.parse_qsl` does, which takes 0.1 s for a megabyte of escapes.

    Raises:
        ValueError: it has too many fields, or its escapes are no UTF-8.
    """
    if text.count("&") >= MAX_FORM_FIELDS:
        raise ValueError(f"more than {MAX_FORM_FIELDS} fields")
    pairs = []
    for field in text.split("&"):
        if field:
            name, _, value = field.partition("=")
            pairs.append(((yield from _unquoted(name)), (yield from _unquoted(value))))
    return pairs


def _unquoted(text: str) -> Generator[None, None, str]:
    pieces = []
    at = 0
    while at < len(text):
        end = at + _FORM_CHARACTERS
        escape = text.rfind("%", end - 2, end)  # it would be cut
        if escape >= 0:
            end = escape
        pieces.append(unquote_to_bytes(text[at:end].replace("+", " ")))
        at = end
        yield
    return b"".join(pieces).decode()


def _plant(tree: dict[str, Any], key: str, value: str) -> None:
    """Put the value of a key with dots into a tree."""
    *path, last = key.split(".")
    if len(path) > 6:
        raise SqsError(SERIALIZATION, f"form: read key {key[:80]}; allowed: up to 7 parts")
    for part in path:
        branch = tree.setdefault(part, {})
        if not isinstance(branch, dict):
            raise SqsError(SERIALIZATION, f"form: key {key[:80]} is below a value")
        tree = branch
    if isinstance(tree.get(last), dict):
        raise SqsError(SERIALIZATION, f"form: key {key[:80]} has values below it")
    tree[last] = value


def _structure(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree with the names of the JSON protocol."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if name in _LISTS:
            found[_LISTS[name]] = [_leaf(one) for one in _numbered(name, value)]
        elif name in _MAPS:
            target, key_name, value_name = _MAPS[name]
            is_pair = isinstance(value, dict) and key_name in value
            entries = [value] if is_pair else _numbered(name, value)
            found[target] = dict(_pair(name, one, key_name, value_name) for one in entries)
        elif name in _LIST_NAMES and value == "":
            found[name] = []  # as some SDKs write an empty list
        elif name in _INTEGERS and isinstance(value, str) and _INTEGER.fullmatch(value):
            found[name] = int(value)
        else:
            found[name] = _leaf(value)
    return found


def _leaf(value: Any) -> Any:
    return _structure(value) if isinstance(value, dict) else value


def _numbered(name: str, value: Any) -> list[Any]:
    """Return the elements of a list in the order of their numbers."""
    if isinstance(value, str):
        return [value] if value else []
    if not all(_INTEGER.fullmatch(number) for number in value):
        raise SqsError(SERIALIZATION, f"form: allowed: {name}.NUMBER")
    return [value[number] for number in sorted(value, key=int)]


def _pair(name: str, entry: Any, key_name: str, value_name: str) -> tuple[str, Any]:
    key = entry.get(key_name) if isinstance(entry, dict) else None
    if not isinstance(key, str) or value_name not in entry:
        allowed = f"{name}.NUMBER.{key_name} and {name}.NUMBER.{value_name}"
        raise SqsError(SERIALIZATION, f"form: allowed: {allowed}")
    return key, _leaf(entry[value_name])


def write_json_answer(result: Mapping[str, Any]) -> Generator[None, None, bytes]:
    """Return the body of an answer; each message is a step."""
    members = []
    for name, value in result.items():
        if isinstance(value, list):
            texts = []
            for one in value:
                texts.append(json.dumps(one))
                yield
            members.append(f'"{name}": [{", ".join(texts)}]')
        else:
            members.append(f'"{name}": {json.dumps(value)}')
    return f"{{{', '.join(members)}}}".encode()


def write_json_error(error: SqsError) -> bytes:
    """Return the body of an error's answer."""
    return json.dumps(
        {"__type": f"com.amazonaws.sqs#{error.fault.code}", "message": str(error)}
    ).encode()


def write_query_error_header(error: SqsError) -> str:
    """Return the header ``x-amzn-query-error``, from which SDKs take the older name of an error."""
    return f"{error.fault.shown_code};{'Sender' if error.fault.is_senders else 'Receiver'}"


def write_xml_answer(
    action: str, result: Mapping[str, Any], request_id: str
) -> Generator[None, None, bytes]:
    """Return the body of an answer of the query protocol; each message is a step."""
    inner = []
    for name, value in result.items():
        for one in [[each] for each in value] if isinstance(value, list) else [value]:
            inner.append(_xml_member(action, name, one))
            yield
    wrapped = f"<{action}Result>{''.join(inner)}</{action}Result>"
    return _document(
        f"{action}Response",
        f"{wrapped}<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>",
    )


def write_xml_error(error: SqsError, request_id: str) -> bytes:
    """Return the body of an error's answer of the query protocol."""
    kind = "Sender" if error.fault.is_senders else "Receiver"
    return _document(
        "ErrorResponse",
        f"<Error><Type>{kind}</Type><Code>{error.fault.shown_code}</Code>"
        f"<Message>{_xml_text(str(error))}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId>",
    )


def _document(root: str, inner: str) -> bytes:
    return f'<?xml version="1.0"?>\n<{root} xmlns="{_NAMESPACE}">{inner}</{root}>'.encode()


def _xml_member(action: str, name: str, value: Any) -> str:
    """Return the elements of one member of a structure."""
    if isinstance(value, Mapping) and name in _PAIRS:
        element, key_name, value_name = _PAIRS[name]
        return "".join(
            f"<{element}><{key_name}>{_xml_text(key)}</{key_name}>"
            f"<{value_name}>{_xml_value(action, one)}</{value_name}></{element}>"
            for key, one in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        element = f"{action}ResultEntry" if name == "Successful" else _ELEMENTS[name]
        return "".join(f"<{element}>{_xml_value(action, one)}</{element}>" for one in value)
    return f"<{name}>{_xml_value(action, value)}</{name}>"


def _xml_value(action: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return "".join(_xml_member(action, name, one) for name, one in value.items())
    if isinstance(value, bool):
        return "true" if value else "false"
    return _xml_text(str(value))


def _xml_text(text: str) -> str:
    """Return text for XML; a bare carriage return would be read as a line feed."""
    return escape(_NO_XML.sub("\ufffd", text), {"\r": "&#13;"})

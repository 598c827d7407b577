"""The errors of the SQS API, by the names that SDKs know."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.errors import PenstockError


class Fault(NamedTuple):
    """One kind of error.

    Attributes:
        code: its name in the JSON protocol.
        query_code: its name in the query protocol, which most SDKs show; "" for the same name.
        is_senders: whether the request must change before it can succeed.
    """

    code: str
    query_code: str = ""
    status: int = 400
    is_senders: bool = True

    @property
    def shown_code(self) -> str:
        """Name in the query protocol."""
        return self.query_code or self.code


_PREFIX: Final = "AWS.SimpleQueueService."

QUEUE_DOES_NOT_EXIST: Final = Fault("QueueDoesNotExist", f"{_PREFIX}NonExistentQueue")
QUEUE_NAME_EXISTS: Final = Fault("QueueNameExists", "QueueAlreadyExists")
RECEIPT_HANDLE_IS_INVALID: Final = Fault("ReceiptHandleIsInvalid")
MESSAGE_NOT_INFLIGHT: Final = Fault("MessageNotInflight", f"{_PREFIX}MessageNotInflight")
INVALID_MESSAGE_CONTENTS: Final = Fault("InvalidMessageContents")
INVALID_PARAMETER_VALUE: Final = Fault("InvalidParameterValueException", "InvalidParameterValue")
MISSING_PARAMETER: Final = Fault("MissingRequiredParameterException", "MissingParameter")
INVALID_ATTRIBUTE_NAME: Final = Fault("InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE: Final = Fault("InvalidAttributeValue")
EMPTY_BATCH_REQUEST: Final = Fault("EmptyBatchRequest", f"{_PREFIX}EmptyBatchRequest")
TOO_MANY_ENTRIES: Final = Fault(
    "TooManyEntriesInBatchRequest", f"{_PREFIX}TooManyEntriesInBatchRequest"
)
BATCH_REQUEST_TOO_LONG: Final = Fault("BatchRequestTooLong", f"{_PREFIX}BatchRequestTooLong")
BATCH_IDS_NOT_DISTINCT: Final = Fault(
    "BatchEntryIdsNotDistinct", f"{_PREFIX}BatchEntryIdsNotDistinct"
)
INVALID_BATCH_ENTRY_ID: Final = Fault("InvalidBatchEntryId", f"{_PREFIX}InvalidBatchEntryId")
UNSUPPORTED_OPERATION: Final = Fault("UnsupportedOperation", f"{_PREFIX}UnsupportedOperation")
RESOURCE_NOT_FOUND: Final = Fault("ResourceNotFoundException", status=404)
OVER_LIMIT: Final = Fault("OverLimit", status=403)
REQUEST_THROTTLED: Final = Fault("RequestThrottled", status=429, is_senders=False)
SERVICE_UNAVAILABLE: Final = Fault("ServiceUnavailable", status=503, is_senders=False)
STORAGE_FULL: Final = Fault("ServiceUnavailable", status=507, is_senders=False)
INTERNAL_FAILURE: Final = Fault("InternalFailure", status=500, is_senders=False)
UNKNOWN_ACTION: Final = Fault("UnknownOperationException", "InvalidAction")
SERIALIZATION: Final = Fault("SerializationException", "MalformedInput")
REQUEST_TOO_LARGE: Final = Fault("RequestEntityTooLarge", status=413)
REQUEST_TIMEOUT: Final = Fault("RequestTimeout", status=408)
ACCESS_DENIED: Final = Fault("AccessDeniedException", "AccessDenied", 403)
MISSING_TOKEN: Final = Fault(
    "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403
)
INCOMPLETE_SIGNATURE: Final = Fault("IncompleteSignatureException", "IncompleteSignature")
UNKNOWN_ACCESS_KEY: Final = Fault("UnrecognizedClientException", "InvalidClientTokenId", 403)
WRONG_SIGNATURE: Final = Fault("InvalidSignatureException", "SignatureDoesNotMatch", 403)


class SqsError(PenstockError):
    """A request that is refused, or that failed."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def invalid_parameter(name: str, value: object, allowed: str) -> SqsError:
    """Return the error of a parameter with a value that is not allowed."""
    shown = str(value)
    if len(shown) > 80:
        shown = f"{shown[:77]}..."
    return SqsError(
        INVALID_PARAMETER_VALUE,
        f"Value {shown} for parameter {name} is invalid. Reason: must be {allowed}.",
    )

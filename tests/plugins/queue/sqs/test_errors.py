from __future__ import annotations

from typing import Any

import boto3
import pytest

from penstock.plugins.queue.sqs import errors
from penstock.plugins.queue.sqs.errors import Fault, invalid_parameter

FAULTS = {name: value for name, value in vars(errors).items() if isinstance(value, Fault)}
OF_EVERY_SERVICE = {
    "AccessDeniedException",
    "IncompleteSignatureException",
    "InternalFailure",
    "InvalidParameterValueException",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "MissingRequiredParameterException",
    "RequestEntityTooLarge",
    "RequestTimeout",
    "SerializationException",
    "ServiceUnavailable",
    "UnknownOperationException",
    "UnrecognizedClientException",
}
"""Names that Amazon's services have in common; no service's model has them."""


@pytest.fixture(scope="module")
def client() -> Any:
    """Return a client of boto3, which is never connected."""
    return boto3.client(
        "sqs", region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_name_is_one_that_sdks_know(fault: Fault, client: Any) -> None:
    """By the name in the JSON protocol SDKs choose the class of an error."""
    assert fault.code in OF_EVERY_SERVICE or hasattr(client.exceptions, fault.code)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_status_says_whose_fault_it_is(fault: Fault) -> None:
    """SDKs repeat a request for 5xx and for throttling, and no other."""
    assert fault.is_senders == (fault.status < 500 and fault.status != 429)


def test_a_long_value_is_truncated_in_the_error() -> None:
    """A body of a megabyte is not sent back."""
    error = invalid_parameter("MessageBody", "x" * 1000, "short")
    assert len(str(error)) < 200
    assert "MessageBody" in str(error)

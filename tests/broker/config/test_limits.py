from __future__ import annotations

import pytest

from penstock.broker.config.addresses import address_key
from penstock.broker.config.limits import Limits
from penstock.broker.config.policy import parse_policy
from penstock.broker.errors import ConfigError


def test_limits_take_the_place_of_defaults() -> None:
    """Every key of `limits` can be set, with dashes or underscores."""
    limits = parse_policy("limits: {queued-bytes: 1000, receive_maximum: 3}", "p").limits
    assert limits == Limits(queued_bytes=1000, receive_maximum=3)


@pytest.mark.parametrize(
    ("text", "path", "read", "allowed"),
    [
        ("{queued_byte: 1}", "limits.queued_byte", "an unknown key", "queued_bytes"),
        (
            "{queued_bytes: big}",
            "limits.queued_bytes",
            "'big'",
            "a whole number of bytes, or a text with a unit",
        ),
        ("{queued_bytes: true}", "limits.queued_bytes", "True", "a whole number of bytes, or"),
        ("{queued_bytes: 0}", "limits.queued_bytes", "0", "greater than or equal to 1"),
        ("{maximum_packet_size: 268435456}", "limits.maximum_packet_size", "2", "less"),
        ("{write_low_bytes: 9, write_high_bytes: 9}", "limits", "9", "less than"),
    ],
)
def test_a_wrong_limit_is_named_with_what_is_allowed(
    text: str, path: str, read: str, allowed: str
) -> None:
    """A limit out of its range ends the start with the key, what was read and the range."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(f"limits: {text}", "policy.yaml")
    (problem,) = caught.value.problems
    assert problem.path == path
    assert read in problem.read
    assert allowed in problem.allowed


def test_what_the_file_leaves_open_is_a_share_of_the_memory() -> None:
    """What it names is taken as it stands, on any machine."""
    limits = Limits().for_memory(1 << 30)
    assert limits.total_queued_bytes == 1 << 28
    own = Limits(total_queued_bytes=1000).for_memory(1 << 30)
    assert own.total_queued_bytes == 1000
    assert limits.total_received_bytes == 1 << 27
    assert limits.retained_bytes == limits.total_subscription_bytes == 1 << 27
    assert Limits(retained_bytes=0).for_memory(1 << 30).retained_bytes == 0
    assert (limits.sessions, limits.sessions_per_address) == (32_768, 16_384)
    assert limits.sessions_per_user is None
    assert limits.total_will_bytes == 1 << 26
    assert Limits(sessions=10).for_memory(1 << 30).sessions_per_address == 5


@pytest.mark.parametrize(
    ("limits", "mib"),
    [
        (Limits(), 128),
        (Limits().for_memory(1 << 30), 8),
        (Limits().for_memory(1 << 33), 64),
        (Limits().for_memory(1 << 35), 128),
        (Limits(total_queued_bytes=1 << 28).for_memory(1 << 35), 16),
        (Limits(retained_bytes=1 << 29).for_memory(1 << 35), 32),
        (Limits(retained_bytes=0).for_memory(1 << 35), 128),
        (Limits(total_queued_bytes=1, retained_bytes=1).for_memory(1 << 35), 8),
    ],
)
def test_plans_take_little_beside_what_they_are_for(limits: Limits, mib: int) -> None:
    """128 MiB of plans for as many topics came on top of 128 MiB that waited."""
    assert limits.plan_bytes == mib << 20


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("elsewhere", "elsewhere"),
    ],
)
def test_what_an_address_is_counted_by(address: str, key: str) -> None:
    """A host with IPv6 has a whole network to choose from."""
    assert address_key(address) == key

from __future__ import annotations

from penstock.broker.extensions import DeliveryGate, LinkSampler, SessionOwner, overridden
from penstock.broker.link import Link
from penstock.broker.plugin_loader import breaches


class Own(DeliveryGate):
    """A gate with a method of the contract's and methods of its own."""

    def observe(self, link: Link) -> None:
        """Do nothing of use."""

    def is_calm(self, link: Link) -> bool:
        """Say nothing of use."""
        return bool(link)


class Heir(Own):
    """Overrides nothing itself."""


def test_what_is_overridden_is_known_whoever_overrides_it() -> None:
    """A class in between, or the object itself, counts; what is the base class's does not."""
    assert overridden(DeliveryGate().observe, DeliveryGate.observe) is None
    heir = Heir()
    assert overridden(heir.observe, DeliveryGate.observe) == heir.observe
    assert overridden(heir.is_first, DeliveryGate.is_first) is None
    heir.is_first = "alarms".startswith  # type: ignore[method-assign, assignment]
    assert overridden(heir.is_first, DeliveryGate.is_first) == heir.is_first


def test_methods_of_its_own_are_no_breach() -> None:
    """What is not nearly a name of the contract is the plugin's business, and so is what has _."""
    gate = Heir()
    gate._observed = 1  # type: ignore[attr-defined]
    assert list(breaches(gate, DeliveryGate)) == []


def test_a_state_that_is_called_like_a_method_is_no_breach() -> None:
    """No method is meant by `accepted`, `samples` or `closed` that cannot be called."""
    sampler = LinkSampler()
    sampler.samples = []  # type: ignore[attr-defined]
    sampler.forgets = False  # type: ignore[attr-defined]
    assert list(breaches(sampler, LinkSampler)) == []
    sampler.samples = print  # type: ignore[attr-defined]
    ((what, _, _),) = breaches(sampler, LinkSampler)
    assert what == "LinkSampler.samples"


def test_an_attribute_in_the_place_of_a_method_is_a_breach() -> None:
    """The broker would fail at the first call."""
    gate = Own()
    gate.threshold_s = 4096  # type: ignore[assignment, method-assign]
    assert list(breaches(gate, DeliveryGate)) == [
        ("Own.threshold_s", "4096", "a method that takes (topic)")
    ]


def test_a_misspelt_attribute_is_a_breach() -> None:
    """It would have no effect, silently."""
    sampler = LinkSampler()
    sampler.peroid = 5.0  # type: ignore[attr-defined]
    ((what, read, _),) = breaches(sampler, LinkSampler)
    assert (what, read) == (
        "LinkSampler.peroid",
        "a name that LinkSampler does not have (perhaps period)",
    )


class Owner(SessionOwner):
    """Takes what is given by name under its names alone."""

    def claim(self, client_id: str, *, clean_start: bool) -> None:
        """Have every session."""


def test_arguments_that_are_given_by_name_have_the_contract_s_names() -> None:
    """The broker gives them so; a method with another name for one would fail at each call."""
    owner = Owner()
    assert list(breaches(owner, SessionOwner)) == []
    owner.claim = len  # type: ignore[method-assign, assignment]
    ((what, _, allowed),) = breaches(owner, SessionOwner)
    assert (what, allowed) == (
        "Owner.claim",
        "a method that takes (client_id, clean_start)",
    )

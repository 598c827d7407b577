"""A model of who owns a client in a cluster, checked in every state that small cases can reach.

Nodes and the engine exchange messages that arrive in any order. A call of the engine may be
executed once more, after the loss of a connection, and as late as it likes. Nodes crash, are
evicted though they live, and come back. From each state every possible step is taken. Two things
must hold:

* safety: of the nodes that the engine has not evicted, at most one holds a client;
* liveness: where nothing is left to be done, no node waits for a client: each claim has been
  granted, or its node has stopped.

The rules stand in `docs/explanation/cluster.md`. `Rules` leaves them out one by one, which shows
that each is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import pytest

MOST_STATES: Final = 300_000
"""More than any case has; a case that goes on beyond has no end."""


class Rules(NamedTuple):
    """What is left out, to see what it is for.

    Attributes:
        overwrites: a claim takes the row at once, and is told whose it was.
        ignores_numbers: a late repeat of a release removes what its node has claimed since.
        answers_early: a node that is asked for a client that it is just claiming answers at once.
        answers_as_owner: a node that is asked for a client that it does not hold says nothing.
    """

    overwrites: bool = False
    ignores_numbers: bool = False
    answers_early: bool = False
    answers_as_owner: bool = False


class Row(NamedTuple):
    """What the engine keeps of a client: its owner, and by which of the node's claims."""

    node: int
    epoch: int
    number: int

    def is_up_to(self, other: Row) -> bool:
        """Say whether a row is that of another's node, by the same claim or an earlier one."""
        return self[:2] == other[:2] and self.number <= other.number


@dataclass(frozen=True, slots=True)
class Claim:
    """A call of the engine: `row` becomes the client's, if it has none, `displaced` or an own."""

    client: int
    row: Row
    displaced: Row | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's answer to a claim: the row that is there now; with `overwrites`, that was."""

    client: int
    claimed: Row
    found: Row | None


@dataclass(frozen=True, slots=True)
class Release:
    """A call of the engine: the session has ended that `row` was for."""

    client: int
    row: Row


@dataclass(frozen=True, slots=True)
class Ask:
    """A frame from a claimant to the owner: end what `row` is for."""

    client: int
    row: Row
    claimant: Row


@dataclass(frozen=True, slots=True)
class Released:
    """A frame back: what `row` was for is over, and will not come back."""

    client: int
    row: Row
    claimant: Row


Message = Claim | Answer | Release | Ask | Released


class Pending(NamedTuple):
    """A claim that a node has made; who has `asked` for the client since waits until it is granted.

    Attributes:
        row: what it claims.
        owner: the row that stands in the way; None while the engine is asked.
        asked: those who are to be told.
    """

    row: Row
    owner: Row | None = None
    asked: frozenset[Ask] = frozenset()


class Node(NamedTuple):
    """A process: what it holds and what it claims, client by client.

    Attributes:
        epoch: what the engine has given it.
        number: that of its last claim.
        owned: the row of each client that it holds.
        pending: its claim of each client.
    """

    epoch: int
    number: int
    owned: tuple[Row | None, ...]
    pending: tuple[Pending | None, ...]


class Budget(NamedTuple):
    """How often each thing that nobody can foresee may still happen."""

    connects: int = 0
    ends: int = 0
    crashes: int = 0
    evictions: int = 0
    joins: int = 0
    repeats: int = 0


class State(NamedTuple):
    """Everything there is.

    Attributes:
        epochs: the engine's epoch of each node; 0 for one that is not there.
        rows: the engine's row of each client.
        nodes: the process of each node; None where it does not run.
        messages: what is on its way.
        budget: what may still happen.
        n_epochs: how many epochs have been given.
    """

    epochs: tuple[int, ...]
    rows: tuple[Row | None, ...]
    nodes: tuple[Node | None, ...]
    messages: frozenset[Message]
    budget: Budget
    n_epochs: int

    def is_dead(self, row: Row) -> bool:
        """Say whether the node that a row names has been evicted; that cannot change."""
        return self.epochs[row.node] != row.epoch

    def holders(self, client: int) -> list[Row]:
        """Return what nodes hold of a client, of those that are not evicted."""
        owned = (node.owned[client] for node in self.nodes if node is not None)
        return [row for row in owned if row is not None and not self.is_dead(row)]

    def waits(self) -> bool:
        """Say whether a node waits for a client."""
        return any(node is not None and any(node.pending) for node in self.nodes)


def replaced(items: tuple, at: int, item: object) -> tuple:  # type: ignore[type-arg]
    """Return a tuple with another item."""
    return (*items[:at], item, *items[at + 1 :])


def with_node(state: State, at: int, node: Node | None, *sent: Message) -> State:
    """Return a state with another node, which has sent messages."""
    return state._replace(
        nodes=replaced(state.nodes, at, node), messages=state.messages.union(sent)
    )


def less(state: State, **spent: int) -> State:
    """Return a state in which something may happen less often."""
    left = {name: getattr(state.budget, name) - times for name, times in spent.items()}
    return state._replace(budget=state.budget._replace(**left))


def after_claim(node: Node, at: int, client: int, displaced: Row | None) -> tuple[Node, Claim]:
    """Return a node that claims a client, and the call."""
    row = Row(at, node.epoch, node.number + 1)
    pending = node.pending[client]
    asked = pending.asked if pending else frozenset()
    node = node._replace(
        number=row.number, pending=replaced(node.pending, client, Pending(row, None, asked))
    )
    return node, Claim(client, row, displaced)


def after_grant(state: State, at: int, client: int) -> State:
    """Return a state in which a node has got the client, and lets go if it was asked to."""
    node = state.nodes[at]
    assert node is not None
    pending = node.pending[client]
    assert pending is not None
    told = [Released(client, ask.row, ask.claimant) for ask in pending.asked]
    owned = None if told else pending.row
    node = node._replace(
        owned=replaced(node.owned, client, owned), pending=replaced(node.pending, client, None)
    )
    return with_node(state, at, node, *told)


def chances(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Yield what may happen in a state though nothing asks for it."""
    budget = state.budget
    for at, node in enumerate(state.nodes):
        if node is None:
            if budget.joins and not state.epochs[at]:
                epoch = state.n_epochs + 1
                none = (None,) * len(state.rows)
                joined = with_node(state, at, Node(epoch, 0, none, none))
                joined = joined._replace(epochs=replaced(state.epochs, at, epoch), n_epochs=epoch)
                yield f"{at} joins", less(joined, joins=1)
            continue
        for client in range(len(state.rows)):
            if budget.connects and not node.owned[client] and not node.pending[client]:
                claiming, call = after_claim(node, at, client, None)
                yield (
                    f"{client} connects to {at}",
                    less(with_node(state, at, claiming, call), connects=1),
                )
            if budget.ends and (row := node.owned[client]):
                ended = node._replace(owned=replaced(node.owned, client, None))
                yield (
                    f"{client} ends at {at}",
                    less(with_node(state, at, ended, Release(client, row)), ends=1),
                )
        if budget.crashes:
            yield f"{at} crashes", less(with_node(state, at, None), crashes=1)
        if budget.evictions and state.epochs[at] == node.epoch:
            evicted = state._replace(epochs=replaced(state.epochs, at, 0))
            yield f"{at} is evicted", less(evicted, evictions=1)
    if budget.repeats:
        for message in state.messages:
            if isinstance(message, Claim | Release):
                executed = execute(state, message, rules)
                yield f"repeated: {message}", less(executed, repeats=1)


def execute(state: State, call: Claim | Release, rules: Rules) -> State:
    """Return the state after the engine has executed a call, which stays on its way."""
    client, row = call.client, call.row
    there = state.rows[client]
    if isinstance(call, Release):
        is_named = there is not None and (
            there[:2] == row[:2] if rules.ignores_numbers else there.is_up_to(row)
        )
        return state._replace(rows=replaced(state.rows, client, None)) if is_named else state
    is_free = there is None or there == call.displaced or there.is_up_to(row)
    if rules.overwrites or is_free or (there and there.node == row.node and state.is_dead(there)):
        state = state._replace(rows=replaced(state.rows, client, row))
    found = there if rules.overwrites else state.rows[client]
    return state._replace(messages=state.messages | {Answer(client, row, found)})


def hear(state: State, message: Answer | Ask | Released, rules: Rules) -> State:
    """Return the state after a node has got what is for it."""
    client = message.client
    own = (
        message.row
        if isinstance(message, Ask)
        else (message.claimed if isinstance(message, Answer) else message.claimant)
    )
    at = own.node
    node = state.nodes[at]
    if node is None or node.epoch != own.epoch:
        return state
    pending = node.pending[client]
    if isinstance(message, Ask):
        return hear_ask(state, at, message, rules)
    if pending is None or pending.row != own:
        return state
    if isinstance(message, Released):
        return goes_on(state, at, client, rules) if pending.owner == message.row else state
    found = message.found
    if found is None or found.is_up_to(own):
        return after_grant(state, at, client)
    waiting = node._replace(pending=replaced(node.pending, client, pending._replace(owner=found)))
    return with_node(state, at, waiting, Ask(client, found, own))


def hear_ask(state: State, at: int, ask: Ask, rules: Rules) -> State:
    """Return the state after a node was asked to let go."""
    node = state.nodes[at]
    assert node is not None
    client = ask.client
    owned, pending = node.owned[client], node.pending[client]
    if pending and pending.row == ask.row and not rules.answers_early:
        asking = pending._replace(asked=pending.asked | {ask})
        return with_node(state, at, node._replace(pending=replaced(node.pending, client, asking)))
    if owned and owned.is_up_to(ask.row):
        node = node._replace(owned=replaced(node.owned, client, None))
    elif rules.answers_as_owner:
        return state
    return with_node(state, at, node, Released(client, ask.row, ask.claimant))


def goes_on(state: State, at: int, client: int, rules: Rules) -> State:
    """Return the state after the row that a claim waited for was given up, or its node evicted."""
    node = state.nodes[at]
    assert node is not None
    pending = node.pending[client]
    assert pending is not None
    if rules.overwrites:
        return after_grant(state, at, client)
    claiming, call = after_claim(node, at, client, pending.owner)
    return with_node(state, at, claiming, call)


def duties(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Yield what will happen in a state sooner or later, each by itself."""
    for message in state.messages:
        rest = state._replace(messages=state.messages - {message})
        if isinstance(message, Claim | Release):
            yield f"executed: {message}", execute(rest, message, rules)
        else:
            yield f"heard: {message}", hear(rest, message, rules)
    for at, node in enumerate(state.nodes):
        if node is None:
            if state.epochs[at]:
                yield f"{at} expires", state._replace(epochs=replaced(state.epochs, at, 0))
            continue
        if state.epochs[at] != node.epoch:
            yield f"{at} hears that it is evicted", with_node(state, at, None)
        for client, pending in enumerate(node.pending):
            if pending and pending.owner and state.is_dead(pending.owner):
                yield f"{at} sees that the owner is gone", goes_on(state, at, client, rules)


def breach(n_nodes: int, n_clients: int, budget: Budget, rules: Rules) -> list[str]:
    """Return the shortest way to a state that must not be, its fault last; or nothing."""
    none = (None,) * n_clients
    first = State(
        epochs=tuple(range(1, n_nodes + 1)),
        rows=none,
        nodes=tuple(Node(epoch, 0, none, none) for epoch in range(1, n_nodes + 1)),
        messages=frozenset(),
        budget=budget,
        n_epochs=n_nodes,
    )
    reached: dict[State, tuple[str, State | None]] = {first: ("", None)}
    ahead = [first]
    for state in ahead:
        must = list(duties(state, rules))
        fault = ""
        if any(len(state.holders(client)) > 1 for client in range(n_clients)):
            fault = "two nodes hold a client"
        elif not must and state.waits():
            fault = "a node waits for ever"
        if fault:
            return [*way_to(state, reached), fault]
        for step, following in (*must, *chances(state, rules)):
            if following not in reached:
                reached[following] = (step, state)
                ahead.append(following)
        assert len(reached) <= MOST_STATES, "the case has no end"
    return []


def way_to(state: State, reached: dict[State, tuple[str, State | None]]) -> list[str]:
    """Return the steps that have led to a state."""
    steps = []
    at: State | None = state
    while at is not None:
        step, at = reached[at]
        steps.append(step)
    return steps[-2::-1]


SMALL: Final = Budget(connects=3, ends=1, repeats=1)
"""A client that connects here and there, ends, and a call that is executed once more."""


@pytest.mark.parametrize(
    ("n_nodes", "n_clients", "budget"),
    [
        pytest.param(2, 1, SMALL, id="calls are repeated"),
        pytest.param(3, 1, Budget(connects=3, crashes=1), id="a node crashes"),
        pytest.param(3, 1, Budget(connects=3, evictions=1), id="a node is cut off"),
        pytest.param(2, 1, SMALL._replace(crashes=1, joins=1, repeats=0), id="a node is back"),
        pytest.param(2, 1, SMALL._replace(evictions=1, joins=1, ends=0), id="an old epoch writes"),
        pytest.param(2, 2, Budget(connects=3, crashes=1, joins=1), id="two clients"),
    ],
)
def test_a_client_has_one_owner_and_each_claim_is_answered(
    n_nodes: int, n_clients: int, budget: Budget
) -> None:
    """In whatever order things happen."""
    assert breach(n_nodes, n_clients, budget, Rules()) == []


@pytest.mark.parametrize(
    ("rules", "budget", "fault"),
    [
        (Rules(overwrites=True), Budget(connects=3, crashes=1), "two nodes hold a client"),
        (Rules(ignores_numbers=True), SMALL, "two nodes hold a client"),
        (Rules(answers_early=True), SMALL, "two nodes hold a client"),
        (Rules(answers_as_owner=True), SMALL, "a node waits for ever"),
    ],
)
def test_each_rule_is_needed(rules: Rules, budget: Budget, fault: str) -> None:
    """Without it there is a way to a state that must not be."""
    assert breach(3 if rules.overwrites else 2, 1, budget, rules)[-1:] == [fault]

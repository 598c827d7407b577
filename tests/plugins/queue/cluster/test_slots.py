from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.cluster.slots import share_out


@given(
    owned=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    n_wanted=st.integers(1, 8),
)
def test_slots_are_shared_out_evenly_and_few_move(owned: list[int], n_wanted: int) -> None:
    """Each slot is given once by its owner; shares differ by one; nobody gives and gets."""
    first, slots = 0, {}
    for at, n_slots in enumerate(owned):
        slots[f"m{at}"] = list(range(first, first + n_slots))
        first += n_slots
    wanted = list(slots)[:n_wanted]
    moves = share_out(slots, wanted)
    after = {name: set(some) for name, some in slots.items()}
    for (giver, taker), some in moves.items():
        assert after[giver] >= set(some)
        after[giver] -= set(some)
        after[taker] |= set(some)
    assert sum(map(len, after.values())) == first
    shares = {len(after[name]) for name in wanted}
    assert max(shares) - min(shares) <= 1
    assert all(not some for name, some in after.items() if name not in wanted)
    assert not {giver for giver, _ in moves} & {taker for _, taker in moves}
    leaving = sum(len(some) for name, some in slots.items() if name not in wanted)
    surplus = sum(max(0, len(slots[name]) - max(shares)) for name in wanted)
    lacking = sum(max(0, max(shares) - len(slots[name])) for name in wanted)
    assert sum(map(len, moves.values())) <= max(leaving + surplus, lacking)

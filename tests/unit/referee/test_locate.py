"""Where a candidate's process says that its results lie: in their slots or in the pool, or the message is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from stark_worker.device.arena import Arena, ArenaAllocator, Job, nbytes
from stark_worker.protocol.errors import Failure, Outcome
from stark_worker.protocol.request import Build, Entry
from stark_worker.referee.check import locate

OUTPUTS = [
    torch.empty(3, 5),
    torch.empty(4, 6).t(),
    torch.empty(7, dtype=torch.bool),
    torch.empty(2, 3, dtype=torch.complex128),
    torch.empty(0, 4),
    torch.empty((), dtype=torch.int64),
]
POOL_BYTES = 3 * 4096


def make_job() -> Job:
    layout = ArenaAllocator()
    inputs = layout.place_all([torch.empty(5)])
    weights = {"weight": layout.place(torch.empty(8))}
    outputs = layout.place_all(OUTPUTS)
    places = (inputs, layout.place_all([torch.empty(5)]))
    return Job(
        entry=Entry.CANDIDATE,
        device="cuda",
        dtype="float32",
        tf32=False,
        threads=1,
        construct_seed=0,
        build=Build.FAST,
        cache="",
        nontrivial=False,
        construct="",
        construct_tensors=(),
        weights=weights,
        arguments="",
        inputs=places,
        outputs=outputs,
        reads_inputs=False,
        is_written=(True,) * len(outputs),
        pool_offset=layout.size,
        size=layout.size + POOL_BYTES,
    )


JOB = make_job()
SLOTS = [slot.offset for slot in JOB.outputs]
HONEST = [{"stride": list(each.stride()), "shares": False} for each in OUTPUTS]

wild = st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.integers() | st.just(10**400)
nested = st.recursive(wild, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
near = st.integers(-20, JOB.size + 20) | st.integers(JOB.pool_offset - 20, JOB.size + 20)
aligned = st.integers(JOB.pool_offset // 16 - 1, JOB.size // 16 + 1).map(lambda each: 16 * each)
offsets = near | aligned | aligned.map(float) | st.sampled_from(SLOTS) | nested
strides = st.sampled_from([each["stride"] for each in HONEST]) | st.lists(st.integers(-3, 9), max_size=4) | nested
layouts = st.fixed_dictionaries({}, optional={"stride": strides, "shares": nested}) | nested
messages = st.fixed_dictionaries(
    {},
    optional={
        "offsets": st.tuples(*[offsets] * len(OUTPUTS)).map(list) | st.lists(offsets, max_size=9) | nested,
        "layouts": st.lists(layouts, max_size=9) | nested,
        "kinds": nested,
        "did": nested,
    },
)


def said(offsets: object, layouts: object = None) -> dict[str, object]:
    return {"did": "launched", "offsets": offsets, "layouts": copy.deepcopy(HONEST) if layouts is None else layouts}


def arena() -> Arena:
    return Arena(torch.zeros(JOB.size, dtype=torch.uint8))


def touched(view: torch.Tensor, base: int) -> range:
    """The bytes of the arena from the first to the last element of a view."""
    first = view.data_ptr() - base
    last = sum((size - 1) * step for size, step in zip(view.shape, view.stride(), strict=True))
    return range(first, first + (last + 1) * view.element_size())


def check_refusal(failure: Failure) -> None:
    assert (failure.outcome, failure.rule) == (Outcome.REJECTED, "forged_message")
    assert len(failure.log) < 300


@given(messages)
@example(said(list(SLOTS)))
@example(said([*SLOTS[:-1], True]))
@example(said([float(JOB.pool_offset), *SLOTS[1:]]))
@example(said([JOB.size - 60, *SLOTS[1:]]))
@example(said([JOB.size - 59, *SLOTS[1:]]))
@example(said([SLOTS[1], *SLOTS[1:]]))
@example(said([JOB.pool_offset, JOB.pool_offset, *SLOTS[2:]]))
@example(said([JOB.pool_offset, JOB.pool_offset + 59, *SLOTS[2:]]))
def test_no_message_makes_the_referee_touch_other_memory(message):
    memory = arena()
    try:
        views = locate(copy.deepcopy(message), JOB, memory)
    except Failure as failure:
        check_refusal(failure)
        return
    assert len(views) == len(JOB.outputs)
    taken: set[int] = set()
    for view, slot in zip(views, JOB.outputs, strict=True):
        assert (tuple(view.shape), view.dtype) == (slot.shape, getattr(torch, slot.dtype))
        if view.numel() == 0:
            continue
        place = touched(view, memory.address)
        assert len(place) == nbytes(view), "dense, so every byte in between belongs to it"
        assert place.start == slot.offset or (JOB.pool_offset <= place.start and place.stop <= JOB.size)
        assert not taken & set(place), "no two of them share a byte"
        taken |= set(place)


@given(st.permutations(range(len(OUTPUTS))), st.lists(st.booleans(), min_size=len(OUTPUTS), max_size=len(OUTPUTS)))
def test_results_in_the_pool_are_found_where_they_lie(order, in_slot):
    """In any order, and some of them in their slots."""
    memory, at, places = arena(), JOB.pool_offset, list(SLOTS)
    for number in order:
        if not in_slot[number] and OUTPUTS[number].numel():
            places[number] = at
            at += -(-nbytes(OUTPUTS[number]) // 512) * 512
    views = locate(said(places), JOB, memory)
    assert [view.data_ptr() - memory.address for view in views if view.numel()] == [
        place for place, output in zip(places, OUTPUTS, strict=True) if output.numel()
    ]


@pytest.mark.parametrize("at", [SLOTS[1], JOB.pool_offset], ids=["slot", "pool"])
def test_only_the_dense_layout_and_that_of_the_slot_are_believed(at):
    transposed, usual = (1, 6), (4, 1)
    for stride, expected in [([1, 6], transposed), ([4, 1], usual), ([0, 0], transposed), ([9, 9], transposed)]:
        forged = [*HONEST[:1], {"stride": stride}, *HONEST[2:]]
        (_, view, *_) = locate(said([SLOTS[0], at, *SLOTS[2:]], forged), JOB, arena())
        assert view.stride() == (transposed if at == SLOTS[1] else expected)


def test_the_message_stays_as_it_came():
    """It is read again afterwards: its layouts are checked against the reference's."""
    message = said(list(SLOTS))
    before = copy.deepcopy(message)
    locate(message, JOB, arena())
    assert message == before


@pytest.mark.parametrize(
    ("message", "log"),
    [
        ({}, "not reported"),
        (said(None), "not reported"),
        (said(SLOTS[:-1]), "not reported"),
        (said([*SLOTS, JOB.pool_offset]), "not reported"),
        (said([JOB.size, *SLOTS[1:]]), "outside the memory of results"),
        (said([JOB.pool_offset + 1, *SLOTS[1:]]), "outside the memory of results"),
        (said([JOB.inputs[0][0].offset, *SLOTS[1:]]), "outside the memory of results"),
        (said([JOB.weights["weight"].offset, *SLOTS[1:]]), "outside the memory of results"),
        (said([JOB.pool_offset, JOB.pool_offset + 32, *SLOTS[2:]]), "on top of each other"),
    ],
)
def test_a_refusal_says_what_is_wrong(message, log):
    with pytest.raises(Failure, match=log):
        locate(message, JOB, arena())

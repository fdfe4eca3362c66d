"""Measures the overhead of requests before a candidate is loaded, and warms it up afterwards."""

from __future__ import annotations

import time

from stark_worker.correctness.reference import Reference
from stark_worker.protocol.codec import ProtocolError, from_data
from stark_worker.protocol.errors import Failure, MachineryFault, SandboxTooWeak
from stark_worker.protocol.isolation import Isolation
from stark_worker.referee.calls import Caller, Calls
from stark_worker.referee.candidate import NOT_STARTED, START_S
from stark_worker.timing.overhead import Overhead
from stark_worker.timing.sample import Sample

CALIBRATIONS, CALIBRATIONS_HUGE, CALIBRATIONS_FEW = 20, 9, 5
LARGE_CALL_BYTES = 2**28  # of inputs and outputs; from here on the host calibrates less, and cases are drawn one by one
MAX_WARM_UPS, WARM_UP_S, WARM_UP_DEVICE_S = 100, 1.0, 0.05
MIN_WARM_UPS = 3  # on a GPU: they show if a candidate waits for the device


def calibrate(caller: Caller, reference: Reference) -> tuple[Isolation, Overhead]:
    """Open the arena in the candidate's process and measure the overhead. A failure here is the machine's."""
    try:
        caller.candidate.send(do="prepare", files=caller.files)
        ready = caller.candidate.expect("ready", START_S)
        if "refused" in ready:
            raise SandboxTooWeak(str(ready["refused"]))
        isolation = from_data(Isolation, ready.get("isolation"))
        singles = empty_requests(caller, reference, [(0, 0)])
        bursts = empty_requests(caller, reference, []) if caller.places > 1 else []
        overhead = Overhead.of(singles, bursts, _without_gate(caller, reference), _hand_over_all(caller, reference))
        overhead = overhead.with_writes(_write_all(caller, reference), caller.places)
    except (Failure, ProtocolError) as failure:
        raise MachineryFault(f"{NOT_STARTED} {failure}") from failure
    return isolation, overhead


def empty_requests(caller: Caller, reference: Reference, calls: Calls) -> list[Sample]:
    """Make requests that compute nothing, with the same preparations as real ones, on inputs never used again.

    On the CPU leave out the preparations: they matter little there, and a task can take long.
    """
    inputs = {} if caller.on_host else {0: reference.timed_inputs(1)[0]}
    if caller.on_host:
        count = CALIBRATIONS_FEW if reference.call_bytes >= LARGE_CALL_BYTES else CALIBRATIONS
    else:
        count = CALIBRATIONS_HUGE if reference.is_huge else CALIBRATIONS
    return [caller.call(calls, inputs).sample for _ in range(count + 1)][1:]  # the first one touches new memory


def repeat_last_call(caller: Caller) -> list[Sample]:
    """Warm up: repeat a call on the inputs that were written last."""
    until = time.monotonic() + (WARM_UP_S if caller.on_host else WARM_UP_DEVICE_S)
    samples: list[Sample] = []
    least = 1 if caller.on_host else MIN_WARM_UPS
    while len(samples) < least or (len(samples) < MAX_WARM_UPS and time.monotonic() < until):
        samples.append(caller.call([(caller.last_place, len(samples))], {}).sample)
    return samples


def _without_gate(caller: Caller, reference: Reference) -> list[Sample]:
    """Make requests whose inputs are written before the call."""
    if caller.on_host:
        return []
    caller.is_gated = False
    samples = empty_requests(caller, reference, [(0, 0)])
    caller.is_gated = True
    return samples


def _hand_over_all(caller: Caller, reference: Reference) -> list[Sample]:
    """On the host, hand over the results of the longest burst, for which there is one message."""
    calls = [(place, 0) for place in range(caller.places)]
    return empty_requests(caller, reference, calls) if caller.on_host and len(calls) > 1 else []


def _write_all(caller: Caller, reference: Reference) -> list[float]:
    """Return the times in which a device writes all places; the first write is left out."""
    if caller.on_host or caller.places == 1:
        return [0.0]
    inputs = dict(enumerate(reference.timed_inputs(caller.places)))
    return [caller.write(inputs).took_ms for _ in range(CALIBRATIONS_FEW + 1)][1:]

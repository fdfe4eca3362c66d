"""The occupancy of a kernel, by the rules of the CUDA programming guide and its occupancy calculator. No torch."""

from __future__ import annotations

from dataclasses import dataclass

WARP, PARTITIONS = 32, 4  # threads of a warp; parts of a multiprocessor with registers of their own
REGISTERS, REGISTER_UNIT = 65_536, 256  # of a multiprocessor; a warp gets a multiple of the unit


@dataclass(frozen=True)
class Multiprocessor:
    """The most that a multiprocessor holds. Shared memory includes ``reserved`` bytes of every block."""

    warps: int
    blocks: int
    shared_bytes: int
    reserved: int = 1024
    shared_unit: int = 128


# By compute capability: the table of technical specifications in the programming guide.
MULTIPROCESSORS = {
    (7, 0): Multiprocessor(64, 32, 96 * 1024, 0, 256),
    (7, 2): Multiprocessor(64, 32, 96 * 1024, 0, 256),
    (7, 5): Multiprocessor(32, 16, 64 * 1024, 0, 256),
    (8, 0): Multiprocessor(64, 32, 164 * 1024),
    (8, 6): Multiprocessor(48, 16, 100 * 1024),
    (8, 7): Multiprocessor(48, 16, 164 * 1024),
    (8, 9): Multiprocessor(48, 24, 100 * 1024),
    (9, 0): Multiprocessor(64, 32, 228 * 1024),
    (10, 0): Multiprocessor(64, 32, 228 * 1024),
    (10, 3): Multiprocessor(64, 32, 228 * 1024),
    (11, 0): Multiprocessor(48, 24, 228 * 1024),
    (12, 0): Multiprocessor(48, 24, 100 * 1024),
    (12, 1): Multiprocessor(48, 24, 100 * 1024),
}


@dataclass(frozen=True)
class Occupancy:
    """The share of all warps of the device that a kernel can fill, and what limits it."""

    share: float
    limit: str

    def __str__(self) -> str:
        return f"{self.share:.0%} ({self.limit})"


def occupancy(
    capability: tuple[int, int], threads: int, registers: int, shared_bytes: int, blocks_per_processor: float
) -> Occupancy | None:
    """Return the occupancy of a launch; None for an unknown device.

    ``threads`` are those of a block, ``registers`` those of a thread, and ``shared_bytes`` the static and the dynamic
    shared memory of a block. ``blocks_per_processor`` is the grid divided by the number of multiprocessors.
    """
    processor = MULTIPROCESSORS.get(capability)
    if processor is None or threads <= 0:
        return None
    warps = -(-threads // WARP)
    fitting = {
        "registers": _blocks_by_registers(registers, warps),
        "shared memory": _blocks_by_shared_memory(processor, shared_bytes),
        "threads": processor.warps // warps,
        "blocks": processor.blocks,
    }
    limit, blocks = min(fitting.items(), key=lambda item: item[1])
    if blocks_per_processor < blocks:
        limit = "small grid"
    share = min(min(blocks, blocks_per_processor) * warps / processor.warps, 1.0)
    return Occupancy(share, "full" if share == 1.0 else limit)


def _blocks_by_registers(registers: int, warps: int) -> int:
    of_warp = -(-max(registers, 1) * WARP // REGISTER_UNIT) * REGISTER_UNIT
    return REGISTERS // PARTITIONS // of_warp * PARTITIONS // warps


def _blocks_by_shared_memory(processor: Multiprocessor, shared_bytes: int) -> int:
    taken = -(-(shared_bytes + processor.reserved) // processor.shared_unit) * processor.shared_unit
    return processor.shared_bytes // taken if taken else processor.blocks

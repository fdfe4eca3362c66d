"""The paper's published figures: A100 40 GB, Claude Sonnet 4, 30 attempts."""

from __future__ import annotations

from dataclasses import dataclass

Three = tuple[float, float, float]  # against eager, torch.compile default, torch.compile max-autotune

ATTEMPTS = 30  # per run


@dataclass(frozen=True)
class Published:
    """One row of the paper's Table 1 or 3; shares as fractions."""

    fast_1: Three
    speed: Three
    success: float | None = None


TABLE_1 = {
    (1, "sampling"): Published((0.143, 0.071, 0.071), (0.81, 0.46, 0.81), 0.571),
    (1, "reflexion"): Published((0.286, 0.143, 0.357), (1.24, 0.57, 0.92), 0.926),
    (1, "stark"): Published((0.714, 0.786, 0.786), (3.03, 2.37, 2.76), 1.0),
    (2, "sampling"): Published((0.5, 0.375, 0.375), (1.06, 0.91, 0.91), 0.875),
    (2, "reflexion"): Published((0.75, 0.625, 0.625), (0.88, 0.78, 0.78), 1.0),
    (2, "stark"): Published((1.0, 0.875, 0.875), (2.69, 2.51, 2.52), 1.0),
    (3, "sampling"): Published((0.5, 0.125, 0.125), (0.87, 0.67, 0.66), 1.0),
    (3, "reflexion"): Published((0.25, 0.125, 0.125), (0.79, 0.62, 0.61), 0.675),
    (3, "stark"): Published((0.875, 0.875, 0.875), (1.58, 1.27, 1.26), 1.0),
}

# compile rate, correct rate
TABLE_2 = {
    (1, "sampling"): (0.908, 0.430),
    (2, "sampling"): (0.970, 0.440),
    (3, "sampling"): (0.849, 0.151),
    (1, "reflexion"): (0.860, 0.483),
    (2, "reflexion"): (0.862, 0.534),
    (3, "reflexion"): (0.789, 0.284),
    (1, "stark"): (0.845, 0.506),
    (2, "stark"): (0.907, 0.612),
    (3, "stark"): (0.834, 0.355),
}

TABLE_3 = {
    (3, "sampling"): TABLE_1[3, "sampling"],
    (3, "search-agent"): Published((0.675, 0.25, 0.25), (0.89, 0.71, 0.70)),
    (3, "ma-only"): Published((0.675, 0.25, 0.25), (1.11, 0.92, 0.91)),
    (3, "stark"): TABLE_1[3, "stark"],
}

FIGURE_1 = {
    (1, "sampling"): "10.7x",
    (1, "reflexion"): "13.7x",
    (2, "reflexion"): "16x",
    (3, "sampling"): "5 to 6x",
    (3, "reflexion"): "5 to 6x",
}

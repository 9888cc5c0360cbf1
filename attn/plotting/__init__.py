"""Figures of matrices, masks and measurements in the book's one style.

    matrices    heat maps, masks and power laws; each function returns Axes
    cells       marks on the cells of a matrix that is already drawn

Draws with matplotlib, takes plain arrays and knows nothing about attention. May import
attn.palette. Drawings of the mechanism itself are in attn.diagrams.
"""

from attn.palette import ROLES, line_styles
from attn.plotting.matrices import (
    SEQUENTIAL,
    fit_slope,
    heat_map,
    mask_map,
    new_axes,
    power_law,
    use_style,
)

__all__ = [
    "ROLES",
    "SEQUENTIAL",
    "fit_slope",
    "heat_map",
    "line_styles",
    "mask_map",
    "new_axes",
    "power_law",
    "use_style",
]

"""Drill of ordered levels: short texts that say one to three grades, each asked as a score."""

from typing import Any

from launch.mini.generate.asked import record
from launch.mini.generate.draw import Draw
from launch.mini.generate.scales import ALL_SCALES
from launch.mini.generate.text import framed, joined


def scaling(draw: Draw, identity: str) -> dict[str, Any]:
    """One text with a score question for each grade it says."""
    while True:
        grades = [(scale, draw.number(7)) for scale in draw.sample(ALL_SCALES, draw.between(1, 3))]
        asked = [one for one in (scale.ask(draw, grade) for scale, grade in grades) if one is not None]
        if asked:
            break
    text = joined(draw, [scale.phrase(draw, grade) for scale, grade in grades], draw.number(3))
    return record(draw, identity, framed(draw, text), asked)

"""Comparisons of numbers with bounds, in the ways that people write both."""

from typing import Any

from launch.mini.generate import values
from launch.mini.generate.asked import Asked, noul, record
from launch.mini.generate.draw import Draw
from launch.mini.generate.text import framed, joined

_BOUNDS = (
    50,
    100,
    200,
    250,
    300,
    400,
    500,
    750,
    800,
    1000,
    1500,
    2000,
    2500,
    3000,
    4000,
    5000,
    6000,
    7500,
    8000,
    10000,
    20000,
    25000,
    50000,
)
_ABOVE = (
    "Is the {what} above {bound}?",
    "Is the {what} more than {bound}?",
    "Does the {what} exceed {bound}?",
    "Is the {what} over {bound}?",
    "The {what} is higher than {bound}.",
)
_BELOW = (
    "Is the {what} below {bound}?",
    "Is the {what} less than {bound}?",
    "Is the {what} under {bound}?",
    "The {what} is lower than {bound}.",
)
_QUANTITIES = (
    ("total", "EUR"), ("amount", "EUR"), ("price", "EUR"), ("balance", "USD"), ("budget", "GBP"), ("cost", "EUR"), ("deposit", "CHF"),
    ("weight", "kg"), ("distance", "km"), ("latency", "ms"), ("error count", "errors"), ("queue length", "messages"),
    ("number of users", "users"), ("free space", "GB"), ("load", "requests"), ("order value", "EUR"), ("salary", "EUR"),
)  # fmt: skip


def near(draw: Draw, bound: int) -> int:
    """A value in hundredths around a bound, never within a tenth of it."""
    ratio = draw.real(1.12, 2.0) if draw.chance(0.6) else draw.real(2.0, 9.0)
    cents = bound * 100 * ratio if draw.chance(0.5) else bound * 100 / ratio
    step = draw.of((1, 50, 100, 100, 500, 1000))
    return max(int(cents / step) * step, 100) if bound >= 100 else max(int(cents), 100)


def bound_asked(draw: Draw, what: str, unit: str, cents: int, bound: int) -> Asked:
    """Whether a value is above, or below, a bound."""
    above = draw.chance(0.7)
    written = draw.of((f"{bound:,}", f"{bound:,}", f"{bound:,}", str(bound)))
    names: tuple[str, ...] = (
        f"over_{bound}",
        f"above_{bound}",
        f"more_than_{bound}",
        "large",
        "over_limit",
        "high_value",
    )
    if not above:
        names = (f"under_{bound}", f"below_{bound}", "small", "under_limit", "low_value")
    text = f"{written} {unit}" if draw.chance(0.8) else written
    instructions = [one.format(what=what, bound=text) for one in (_ABOVE if above else _BELOW)]
    asked = noul(draw, names, instructions, cents > bound * 100 if above else cents < bound * 100)
    if "criteria" not in asked.question and draw.chance(0.3):
        asked.question["criteria"] = {"true": None, "false": None}
    return asked


def other_bound(draw: Draw, cents: int) -> int:
    """A bound for a given value that is at least a tenth away from it."""
    usable = [one for one in _BOUNDS if not 0.9 < cents / (one * 100) < 1.11 and 0.08 < cents / (one * 100) < 12]
    return draw.of(usable) if usable else 1


def sizing(draw: Draw, identity: str) -> dict[str, Any]:
    """One quantity and four bounds of it: the shortest drill of comparing. What reads several numbers rests on it."""
    what, unit = draw.of(_QUANTITIES)
    cents = near(draw, draw.of(_BOUNDS))
    if draw.chance(0.7):
        cents = cents // 100 * 100
    asked = [bound_asked(draw, what, unit, cents, other_bound(draw, cents)) for _ in range(4)]
    for one in asked:
        one.question["criteria"] = {"true": None, "false": None}
    if draw.chance(0.4):
        state: Any = {what.replace(" ", "_"): values.amount_number(cents)}
    else:
        state = f"{what.capitalize()}: {values.amount_text(draw, cents)} {unit}"
    return record(draw, identity, state, asked)


def comparison(draw: Draw, identity: str) -> dict[str, Any]:
    """One to three quantities, and questions on bounds of them."""
    chosen = draw.sample(_QUANTITIES, draw.between(1, 3))
    amounts = [(what, unit, near(draw, draw.of(_BOUNDS))) for what, unit in chosen]
    asked = [
        bound_asked(draw, what, unit, cents, other_bound(draw, cents))
        for what, unit, cents in amounts
        for _ in range(5 - len(amounts))
    ]
    if draw.chance(0.4):
        state: Any = {what.replace(" ", "_"): values.amount_number(cents) for what, _, cents in amounts}
        if draw.chance(0.3):
            state["customer"] = values.company(draw)
        return record(draw, identity, state, asked, most=6)
    sentences = []
    for what, unit, cents in amounts:
        number = values.amount_text(draw, cents)
        sentences.append(
            draw.of(
                (
                    f"{what.capitalize()}: {number} {unit}",
                    f"The {what} is {number} {unit}",
                    f"We have a {what} of {number} {unit}",
                    f"{number} {unit} is the {what}",
                )
            )
        )
    text = joined(draw, sentences, draw.number(2))
    return record(draw, identity, text if draw.chance(0.8) else framed(draw, text), asked, most=6)

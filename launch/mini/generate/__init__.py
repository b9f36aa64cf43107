"""Generates labelled records: invented tickets, invoices, alerts and tool calls, and drills of matching, comparing and short texts.

A record is a dict as clef-finetune reads one a line: `id`, `state`, `questions`, `labels`. Its number and split decide it
wholly, so any part of a stream can be made again.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

from launch.mini.generate.alerts import alert
from launch.mini.generate.brief import stating, topic
from launch.mini.generate.draw import Draw
from launch.mini.generate.invoices import invoice
from launch.mini.generate.matching import matching, naming
from launch.mini.generate.numbers import comparison, sizing
from launch.mini.generate.scaling import scaling
from launch.mini.generate.tickets import ticket
from launch.mini.generate.tools import tool

SEED = 20261130
# seen: new records over options that training knows. unseen: options that it does not know.
Split = Literal["train", "validation", "heldout"]
# Training begins with the drill of naming, which by this record has given way to all others.
_NAMING_UNTIL = 5_000
# Up to this record of training most others compare one number; without so many of them at first, none of it is learned.
_SIZING_UNTIL = 15_000
# Short texts teach what words and numbers mean; from this record of training on there is more of what is hardest.
_HARDER_FROM = 26_000
# The last records are of the domains, most of them, and ask of alerts what is left when their names say nothing.
_LAST_FROM = 60_000
SPLITS: tuple[Split, ...] = get_args(Split)

_Maker = Callable[[Draw, str], dict[str, Any]]


def _domain(make: Callable[..., dict[str, Any]], *, unseen: bool) -> _Maker:
    return lambda draw, identity: make(draw, identity, unseen=unseen)


_DOMAINS = {"tickets": ticket, "invoices": invoice, "alerts": alert, "tools": tool}
_DRILLS: dict[str, _Maker] = {
    "matching": matching,
    "numbers": comparison,
    "sizing": sizing,
    "scales": scaling,
    "topic": topic,
    "stating": stating,
    "bare": lambda draw, identity: alert(draw, identity, unseen=False, bare=True),
}
# How often each family comes: while the temperature is fitted, and in the four parts of training.
_WEIGHTS = {
    **{"tickets": 5, "invoices": 5, "alerts": 5, "tools": 4},
    **{"matching": 2, "numbers": 2, "scales": 3, "topic": 3, "stating": 4},
}
_SIZING_WEIGHTS = _WEIGHTS | {"sizing": 99}
_SHORT_WEIGHTS = _WEIGHTS | {"alerts": 8, "scales": 10, "sizing": 20}
_HARDER_WEIGHTS = {
    **{"tickets": 6, "invoices": 6, "alerts": 8, "tools": 5},
    **{"matching": 1, "numbers": 6, "sizing": 5, "scales": 8},
}
_LAST_WEIGHTS = {
    **{"tickets": 9, "invoices": 6, "alerts": 4, "bare": 8, "tools": 6},
    **{"matching": 1, "numbers": 4, "sizing": 4, "scales": 3},
}


def _weights(split: Split, number: int) -> dict[str, int]:
    if split == "validation":
        return _WEIGHTS
    if number < _SIZING_UNTIL:
        return _SIZING_WEIGHTS
    if number < _HARDER_FROM:
        return _SHORT_WEIGHTS
    return _HARDER_WEIGHTS if number < _LAST_FROM else _LAST_WEIGHTS


def record(split: Split, number: int) -> dict[str, Any]:
    """The record of that number. Held-out records are of the four domains alone, and every second asks unseen options."""
    draw = Draw(f"{SEED}/{split}/{number}")
    if split == "heldout":
        family = tuple(_DOMAINS)[number // 2 % len(_DOMAINS)]
        kind = "unseen" if number % 2 else "seen"
        return _domain(_DOMAINS[family], unseen=kind == "unseen")(draw, f"{kind}/{family}/{number}")
    if split == "train" and draw.chance(1 - number / _NAMING_UNTIL):
        return naming(draw, f"{split}/naming/{number}")
    family = draw.of([name for name, weight in _weights(split, number).items() for _ in range(weight)])
    make = _DRILLS[family] if family in _DRILLS else _domain(_DOMAINS[family], unseen=False)
    return make(draw, f"{split}/{family}/{number}")


def records(split: Split, count: int, start: int = 0) -> Iterator[dict[str, Any]]:
    """`count` records from number `start` on."""
    return (record(split, number) for number in range(start, start + count))

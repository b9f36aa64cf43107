"""Records to ask, of every kind the prompt format knows: text and JSON states, all question types, 1 to 255 options."""

import random
from typing import Any

REFUND = {"type": "noul", "instructions": "Does the customer want money back?"}
TEAM = {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "payments", "logistics": None}}
URGENCY = {"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "this week", "today"]}

RECORDS: dict[str, dict[str, Any]] = {
    "plain": {"state": "The parcel of Nordwind GmbH arrived broken.", "questions": {"refund": REFUND}},
    "empty-text": {"state": "", "questions": {"refund": REFUND}},
    "empty-object": {"state": {}, "questions": {"refund": REFUND}},
    "unicode": {
        "state": "배송이 3일째 안 와요 😡 — Grüße, Zoë \u0000 \u202e",
        "questions": {
            "질문 🎯": {"type": "choice", "instructions": "어떤 유형?", "criteria": {"환불": "돈", "🙂": None}}
        },
    },
    "nested": {
        "state": {"order": {"id": 12345678901234567890123, "lines": [{"sku": "A-1", "price": 12.50}, None, [], {}]}},
        "questions": {"team": TEAM, "urgency": URGENCY},
    },
    "numbers": {"state": [1250, 1250.0, -0.0, 1e16, 5e-324, True, None], "questions": {"refund": REFUND}},
    "no-descriptions": {
        "state": "Invoice 17 was paid twice.",
        "questions": {"t": {"type": "choice", "instructions": "Pick", "criteria": {"only": None}}},
    },
    "one-sided": {
        "state": "Please cancel.",
        "questions": {
            "a": {"type": "noul", "instructions": "Cancel?", "criteria": {"true": "asks to cancel"}},
            "b": {"type": "noul", "instructions": "Cancel?", "criteria": {"true": "asks to cancel", "false": None}},
            "c": {"type": "noul", "criteria": {"false": ""}, "instructions": {"task": "cancel?"}},
        },
    },
    "structured": {
        "state": {"text": "Disk full"},
        "questions": {
            "c": {
                "type": "choice",
                "instructions": ["Route the ticket.", {"pick": 1}],
                "criteria": {"ops": {"owns": ["disks", {"z": 1, "a": 2}]}, "dev": ["bugs"], "": ""},
            },
            "s": {"type": "score", "criteria": [{"label": "calm"}, ["very", "angry"]]},
        },
    },
    "many-options": {
        "state": "Route the ticket of Ostsee Logistik.",
        "questions": {
            "queue": {
                "type": "choice",
                "instructions": "Queue?",
                "criteria": {f"q{i:03d}": f"d{i}" for i in range(255)},
            }
        },
    },
    "ten-levels": {"state": "x", "questions": {"s": {"type": "score", "criteria": [f"level {i}" for i in range(10)]}}},
    "mixed": {
        "state": "Hi, I was charged twice for my March invoice and will dispute it.",
        "questions": {"refund": REFUND, "team": TEAM, "urgency": URGENCY, "again": dict(REFUND, instructions="Twice?")},
    },
}

TEXT = "invoice parcel refund disk alert late broken paid twice Hamburg Oslo please today server queue"
WORDS = TEXT.split()


def text(seed: float, characters: int) -> str:
    """Words without meaning, exactly so many ASCII characters, which are as many tokens of a byte-level tokenizer."""
    draw = random.Random(seed)
    words = ""
    while len(words) < characters:
        words += f"{draw.choice(WORDS)} "
    return words[:characters]


def questions(seed: int) -> dict[str, Any]:
    """One to four questions of mixed types, other for every seed."""
    draw = random.Random(seed)
    drawn: dict[str, Any] = {}
    for number in range(draw.randint(1, 4)):
        instructions = text(draw.random(), draw.randint(5, 60))
        kind = draw.choice(["noul", "choice", "score"])
        drawn[f"q{number}-{draw.randint(0, 99)}"] = {
            "noul": {"type": "noul", "instructions": instructions},
            "choice": {
                "type": "choice",
                "instructions": instructions,
                "criteria": {f"{draw.choice(WORDS)}{option}": None for option in range(draw.randint(1, 12))},
            },
            "score": {
                "type": "score",
                "instructions": instructions,
                "criteria": [draw.choice(WORDS) for _ in range(draw.randint(1, 6))],
            },
        }[kind]
    return drawn

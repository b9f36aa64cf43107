"""The fixed records of `clef-serve verify`: every question type, 1 to 40 options, text and JSON, short and long. All invented.

They are part of what a figure of `verify` means: one that changes makes older figures incomparable. No randomness, and
nothing of the machine, goes into them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

Record = dict[str, Any]

REFUND = {"type": "noul", "instructions": "Does the customer want money back?"}
URGENCY = {"type": "score", "instructions": "How urgent is it?", "criteria": ["can wait", "this week", "today", "now"]}
TEAM = {
    "type": "choice",
    "instructions": "Which team should handle it?",
    "criteria": {
        "billing": "invoices, payments and refunds",
        "logistics": "parcels on their way, and returns",
        "technical": "the product does not work",
        "other": None,
    },
}
MAIL = (
    "From: imke@brandt-und-soehne.example\nSubject: Order 88-1042\n\nHello, the coffee grinder came with a cracked hopper. "
    "I have sent pictures twice and nobody answers. Please send a new hopper, or take it back and refund the 149.00 EUR."
)
CLAUSES = (
    "The supplier delivers within {0} working days of the order, Saturdays not counted.",
    "For each day of delay the buyer may deduct {0} per mille of the price of what is late.",
    "Goods are examined within {0} days of arrival; hidden defects may be reported later.",
    "Either side may end this contract with {0} weeks' notice to the end of a quarter.",
    "Prices hold for {0} months and follow the index of producer prices after that.",
    "Payment is due {0} days after a correct invoice, less two percent if it is made within eight.",
    "Drawings stay the property of Ravenholt Pumps and are returned within {0} days of the end of the contract.",
)


def _contract(sections: int) -> str:
    lines = ["Frame contract between Ravenholt Pumps and Sundby Castings."]
    for number in range(1, sections + 1):
        clause = CLAUSES[number % len(CLAUSES)].format(3 + number * 7 % 58)
        lines.append(f"Section {number}. {clause} Notices go to section {number % 9 + 1} of annex {number % 5 + 1}.")
    return "\n".join(lines)


def _readings(count: int) -> list[dict[str, Any]]:
    """Of a pump that runs hot from the last quarter on."""
    hot = count * 3 // 4
    return [
        {
            "minute": minute,
            "bearing_c": 61.5 + minute * 37 % 9 / 4 + max(0, minute - hot) * 0.75,
            "flow_l_s": 14 + minute * 11 % 5,
            "ok": minute < hot,
        }
        for minute in range(count)
    ]


def _choice(options: int, instructions: str = "Which queue?") -> Record:
    places = ("Aalborg", "Bergen", "Cadiz", "Dresden", "Esbjerg", "Faro", "Gdynia", "Hull")
    criteria = {
        f"{places[number % 8].lower()}-{number:02d}": f"{places[number % 8]}, desk {number}" if number % 3 else None
        for number in range(options)
    }
    return {"type": "choice", "instructions": instructions, "criteria": criteria}


def _score(levels: int) -> Record:
    return {
        "type": "score",
        "instructions": "How strict?",
        "criteria": [f"degree {n} of {levels}" for n in range(levels)],
    }


RECORDS: dict[str, Record] = {
    "mail": {"state": MAIL, "questions": {"refund": REFUND, "team": TEAM, "urgency": URGENCY}},
    "one-word": {"state": "Thanks!", "questions": {"refund": REFUND}},
    "empty-text": {"state": "", "questions": {"urgency": URGENCY}},
    "empty-object": {"state": {}, "questions": {"team": TEAM}},
    "empty-list": {"state": [], "questions": {"refund": REFUND}},
    "white-space": {"state": "  \n\tTwo parcels,\r\n\r\none label.  \n", "questions": {"team": TEAM, "refund": REFUND}},
    "unsorted-keys": {
        "state": {"zone": 3, "alarm": "door", "Zone": 4, "at": {"minute": 7, "hour": 23}, "by": None},
        "questions": {"urgency": URGENCY},
    },
    "numbers": {
        "state": {"whole": 12345678901234567890, "price": 12.5, "zero": -0.0, "tiny": 5e-324, "big": 1e22, "yes": True},
        "questions": {"refund": {"type": "noul", "instructions": "Is the price above ten?"}},
    },
    "unicode": {
        "state": "배송이 3일째 안 와요 😡 Grüße aus Århus; ἀπορία, נא לבטל, 返品したいです。",
        "questions": {
            "문의 🎯": {
                "type": "choice",
                "instructions": "어떤 유형인가요?",
                "criteria": {"환불": "돈을 돌려받기", "Rückgabe": "Ware zurück", "🚚": None},
            }
        },
    },
    "yes-or-no-in-words": {
        "state": "Please cancel my subscription from next month on.",
        "questions": {
            "both": {
                "type": "noul",
                "instructions": "Cancelled?",
                "criteria": {"true": "asks to cancel", "false": "wants to stay"},
            },
            "one": {"type": "noul", "instructions": "Cancelled?", "criteria": {"true": "asks to cancel"}},
            "none": {
                "type": "noul",
                "instructions": "Cancelled?",
                "criteria": {"true": "asks to cancel", "false": None},
            },
        },
    },
    "no-instructions": {
        "state": {"text": "The lamp flickers."},
        "questions": {
            "is_the_device_broken": {"type": "noul", "criteria": {"true": "it is broken"}},
            "kind_of_device": {"type": "choice", "criteria": {"lamp": None, "heater": None}},
        },
    },
    "structured-instructions": {
        "state": "Disk full on two of three nodes of Fennmark Data.",
        "questions": {
            "owner": {
                "type": "choice",
                "instructions": {"task": "route", "rules": ["one owner", {"prefer": "storage"}]},
                "criteria": {"storage": {"owns": ["disks", {"since": 2019}]}, "network": ["links", "routers"]},
            },
            "harm": {
                "type": "score",
                "instructions": ["How much harm?"],
                "criteria": [{"label": "none"}, ["some"], "much"],
            },
        },
    },
    "one-option": {"state": "Invoice 17 was paid twice.", "questions": {"only": _choice(1)}},
    "two-options": {"state": MAIL, "questions": {"queue": _choice(2)}},
    "seven-options": {"state": MAIL, "questions": {"queue": _choice(7)}},
    "twenty-options": {"state": "Send it to Gdynia.", "questions": {"queue": _choice(20)}},
    "forty-options": {"state": "The desk in Hull with the number 31.", "questions": {"queue": _choice(40)}},
    "one-level": {"state": "Fine.", "questions": {"degree": _score(1)}},
    "ten-levels": {"state": "Nobody may enter without a badge, ever.", "questions": {"degree": _score(10)}},
    "twelve-questions": {
        "state": MAIL,
        "questions": {
            **{f"claim_{n}": {"type": "noul", "instructions": f"Is there a reason number {n}?"} for n in range(8)},
            **{f"queue_{n}": _choice(n, f"Which of {n}?") for n in (3, 5)},
            **{f"degree_{n}": _score(n) for n in (3, 6)},
        },
    },
    "long-options": {
        "state": "The buyer found rust under the paint after five weeks.",
        "questions": {
            "clause": {
                "type": "choice",
                "instructions": "Which clause decides?",
                "criteria": {f"clause {n}": f"{clause.format(n + 9)} " * 3 for n, clause in enumerate(CLAUSES)},
            }
        },
    },
    "long-text": {
        "state": _contract(60),
        "questions": {
            "notice": {"type": "noul", "instructions": "Can the buyer leave within a year?"},
            "risk": {
                "type": "score",
                "instructions": "How risky for the buyer?",
                "criteria": ["low", "medium", "high"],
            },
        },
    },
    "long-list": {
        "state": {"pump": "P-7", "site": "Sundby Castings", "readings": _readings(100)},
        "questions": {
            "overheats": {"type": "noul", "instructions": "Does a bearing overheat?"},
            "action": {
                "type": "choice",
                "instructions": "What should be done?",
                "criteria": {"nothing": None, "watch": "look again in an hour", "stop": "stop the pump at once"},
            },
        },
    },
    "longest-text": {
        "state": _contract(240),
        "questions": {"team": {**TEAM, "instructions": "Who should read section 233?"}, "queue": _choice(12)},
    },
}


def image_records() -> dict[str, tuple[Record, list["Image"]]]:
    """Two more with images, made here: a record and its images. Sizes that no patch grid divides, in colour and in grey."""
    from PIL import Image, ImageDraw

    plate = Image.new("RGB", (233, 171), (236, 230, 214))
    draw = ImageDraw.Draw(plate)
    draw.ellipse((40, 30, 150, 140), fill=(180, 40, 50))
    draw.rectangle((120, 80, 220, 160), outline=(20, 60, 120), width=7)
    ramp = Image.linear_gradient("L").resize((320, 96))
    question = {"type": "noul", "instructions": "Is there a red disc?"}
    shapes = {
        "type": "choice",
        "instructions": "What stands out?",
        "criteria": {"disc": None, "frame": None, "nothing": None},
    }
    return {
        "one-image": ({"state": "A photograph of a label.", "questions": {"red": question}}, [plate]),
        "two-images": (
            {"state": {"note": "before, after"}, "questions": {"red": question, "shape": shapes}},
            [ramp, plate],
        ),
    }

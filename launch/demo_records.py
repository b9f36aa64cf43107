"""The two requests of the README and of `clef-serve demo`: an invoice and a disk alert. Invented companies only."""

from typing import Any

INVOICE: dict[str, Any] = {
    "model": "clef",
    "state": (
        "From: accounts@halden-freight.example\n"
        "Invoice INV-2041 from Halden Freight to Norwick Tools, issued 3 March, due 2 April.\n"
        "14 pallets, Bergen to Hull: 6,180.00 EUR. Fuel surcharge: 412.50 EUR. Total: 6,592.50 EUR.\n"
        "Reminder of 20 April: we have still not received any payment for this invoice."
    ),
    "questions": {
        "overdue": {"type": "noul", "instructions": "Is the payment overdue?"},
        "over_5000": {"type": "noul", "instructions": "Is the total above 5,000 EUR?"},
        "status": {
            "type": "choice",
            "instructions": "What is the status of the invoice?",
            "criteria": {
                "paid": "the full amount has been received",
                "unpaid": "no payment has been received",
                "disputed": "the customer contests the invoice",
                "cancelled": None,
            },
        },
        "tone": {
            "type": "score",
            "instructions": "How firm is the sender's tone?",
            "criteria": ["friendly", "neutral", "firm", "threatening"],
        },
    },
}

ALERT: dict[str, Any] = {
    "model": "clef",
    "state": {
        "alert": "DiskFillingUp",
        "host": "db-03.tidewater-ceramics.example",
        "mount": "/var/lib/postgresql",
        "used_percent": 97,
        "growth_gb_per_hour": 4.2,
        "free_gb": 11,
        "role": "primary database, no standby",
        "local_time": "02:40",
    },
    "questions": {
        "page_someone": {"type": "noul", "instructions": "Should someone be woken up for this?"},
        "severity": {
            "type": "score",
            "instructions": "How severe is it?",
            "criteria": ["no impact", "minor", "service degraded soon", "outage within hours"],
        },
        "team": {
            "type": "choice",
            "instructions": "Which team should handle it?",
            "criteria": {
                "database": "databases and their storage",
                "network": "links, routers and load balancers",
                "application": "the web shop itself",
            },
        },
    },
}

RECORDS: dict[str, dict[str, Any]] = {"invoice": INVOICE, "alert": ALERT}

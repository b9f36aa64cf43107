"""clef-mini's answers beside the reference's, and the right ones to the records of the README."""

from pathlib import Path
from typing import Any

import torch
from clef_finetune.jsm import load_jsm

from launch.demo_records import RECORDS

# Probabilities of each question's options, in scoring order.
Answers = list[list[float]]

LABELS: dict[str, dict[str, bool | str | int]] = {
    "invoice": {"overdue": True, "over_5000": True, "status": "unpaid", "tone": 2},
    "alert": {"page_someone": True, "severity": 3, "team": "database"},
}
LABELLED = {name: {**record, "labels": LABELS[name]} for name, record in RECORDS.items()}


def probabilities(network: Any, encoder: Any, record: dict[str, Any]) -> Answers:
    """What the trained network says."""
    with torch.no_grad():
        return [logits.softmax(-1).tolist() for logits in network([encoder.encode(record).prompt])[0]]


def reference_probabilities(release: Path, records: list[dict[str, Any]]) -> list[Answers]:
    """What Cloudflare's implementation says of each record, in FP32."""
    reference = load_jsm()
    model, processor = reference.load_release_model(str(release), device="cpu", dtype=torch.float32)
    found = []
    for record in records:
        encoded = reference.encode_record(processor.tokenizer, record)
        batch = reference.collate_records([encoded], processor.tokenizer.pad_token_id, torch.device("cpu"))
        with torch.no_grad():
            found.append([logits.softmax(-1).tolist() for logits in model(batch)[0]])
    return found


def difference(one: Answers, other: Answers) -> float:
    """max |dp|."""
    pairs = zip(one, other, strict=True)
    return max(abs(p - q) for question in pairs for p, q in zip(*question, strict=True))

"""Texts with an intent each, as BANKING77 and CLINC150 have them, as records with one choice question over all intents.

Knows their shapes: a CSV file with the columns `text` and `category` or `intent`, and CLINC150's JSON, an object of splits
whose rows are `[text, intent]`. CLINC150's texts without an intent are labelled `oos`, out of scope.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.quality.records import DataError, Dataset, Record, read_bytes
from serving.api_types import MAX_CHOICE_OPTIONS

Oos = Literal["option", "leave-out"]
OUT_OF_SCOPE = "oos"
OUT_OF_SCOPE_MEANS = "none of the other options fits"
LABEL_COLUMNS = ("category", "intent")
DEFAULT_INSTRUCTIONS = "What does the writer of this message want?"
DEFAULT_SPLITS = ("test", "oos_test")


@dataclass(frozen=True, kw_only=True)
class _Row:
    where: str
    text: str
    intent: str
    split: str | None = None


def read_intents(
    path: Path,
    *,
    instructions: str = DEFAULT_INSTRUCTIONS,
    descriptions: Path | None = None,
    oos: Oos = "option",
    splits: Sequence[str] | None = None,
) -> Dataset:
    """The file's texts, each asked for its intent.

    The options are all intents of the file, of every split, or if given those of `descriptions`, in alphabetical order.

    Args:
        instructions: what is asked.
        descriptions: a JSON file: an object of intent and description, which may be null, or a list of intents.
        oos: whether out of scope is an option like the others, or texts without intent are left out.
        splits: which splits of a JSON file to ask; DEFAULT_SPLITS, as far as it has them, if None.

    Raises:
        DataError: a file cannot be read, or has more intents than a choice may have options.
    """
    content = read_bytes(path)
    if path.suffix.lower() == ".csv":
        if splits:
            raise DataError(f"{path} is a CSV file and has no splits")
        column, rows = _csv_rows(path, content)
        asked = rows
    else:
        column, rows = "intent", list(_json_rows(path, content))
        present = {row.split for row in rows}
        if missing := [split for split in splits or () if split not in present]:
            raise DataError(f"{path} has no split {missing[0]}; it has {', '.join(sorted(map(str, present)))}")
        asked = [row for row in rows if row.split in (splits or DEFAULT_SPLITS)]
    criteria = _criteria(path, rows, descriptions, oos)
    records = [
        Record(
            name=row.where,
            request={
                "state": row.text,
                "questions": {column: {"type": "choice", "instructions": instructions, "criteria": criteria}},
            },
            labels={column: list(criteria).index(row.intent)},
        )
        for row in asked
        if row.intent in criteria
    ]
    if not records:
        raise DataError(f"{path} holds no text to ask")
    return Dataset(
        records=records,
        sha256=hashlib.sha256(content).hexdigest(),
        left_out={"out of scope": len(asked) - len(records)} if len(records) < len(asked) else {},
    )


def _criteria(path: Path, rows: Sequence[_Row], descriptions: Path | None, oos: Oos) -> dict[str, str | None]:
    found: Mapping[str, str | None] = dict.fromkeys(row.intent for row in rows)
    if descriptions is not None:
        described = _descriptions(descriptions)
        if unknown := [row for row in rows if row.intent not in described and row.intent != OUT_OF_SCOPE]:
            raise DataError(f"{path}, {unknown[0].where}: the intent is not among those of {descriptions}")
        # Whether out of scope is asked follows from the data, not from whether somebody described it.
        found = {**dict.fromkeys(found), **described}
    criteria = {intent: found[intent] for intent in sorted(found) if intent != OUT_OF_SCOPE or oos == "option"}
    if OUT_OF_SCOPE in criteria:
        criteria[OUT_OF_SCOPE] = criteria[OUT_OF_SCOPE] or OUT_OF_SCOPE_MEANS
    if len(criteria) > MAX_CHOICE_OPTIONS:
        raise DataError(f"{path} has {len(criteria)} intents; a choice has at most {MAX_CHOICE_OPTIONS} options")
    if len(criteria) < 2:
        raise DataError(f"{path} has {len(criteria)} intents; a choice needs at least 2 options")
    return criteria


def _descriptions(path: Path) -> Mapping[str, str | None]:
    read = _json(path, read_bytes(path))
    if isinstance(read, list):
        read = dict.fromkeys(str(name) for name in read)
    if not isinstance(read, dict) or not all(isinstance(text, str | None) for text in read.values()):
        raise DataError(f"{path} must be an object of intents and descriptions, or a list of intents")
    return read


def _csv_rows(path: Path, content: bytes) -> tuple[str, list[_Row]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = content.count(b"\n", 0, err.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8") from err
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    rows = []
    try:
        named = [column for column in LABEL_COLUMNS if column in (reader.fieldnames or ())]
        if "text" not in (reader.fieldnames or ()) or len(named) != 1:
            raise DataError(f"{path}, line 1: the columns must be text and one of {', '.join(LABEL_COLUMNS)}")
        for row in reader:
            where = f"line {reader.line_num}"
            for key in ("text", named[0]):
                if not row[key]:
                    raise DataError(f"{path}, {where}: {key} is missing")
            if None in row:
                raise DataError(f"{path}, {where}: more fields than columns")
            rows.append(_Row(where=where, text=row["text"], intent=row[named[0]]))
    except csv.Error as err:
        raise DataError(f"{path}, line {reader.line_num + 1}: {err}") from err  # counted up to the row before
    return named[0], rows


def _json_rows(path: Path, content: bytes) -> Iterator[_Row]:
    read = _json(path, content)
    if not isinstance(read, dict) or not all(isinstance(rows, list) for rows in read.values()):
        raise DataError(f"{path} must be an object of splits, each a list of [text, intent]")
    for split, rows in read.items():
        for index, row in enumerate(rows):
            where = f"{split}[{index}]"
            if not isinstance(row, list) or len(row) != 2 or not all(isinstance(part, str) and part for part in row):
                raise DataError(f"{path}, {where}: must be [text, intent], both of them text that is not empty")
            yield _Row(where=where, text=row[0], intent=row[1], split=split)


def _json(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as err:  # its message says where, and quotes nothing
        raise DataError(f"{path} is not JSON: {err}") from err

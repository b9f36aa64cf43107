"""Labelled records: a SystemOne request and the right answers to its questions. Reads the format that clef-finetune documents.

Knows no server and no metric. One JSON object a line: `state`, `questions`, `labels`, and if wanted `id` and `images`, paths of
files beside the data. A label is true or false (noul; or that word as text), an option's name (choice), or a level counted from
0 (score; a number, or its digits as text). A question without a label is asked too, as it moves the other answers.
"""

import base64
import hashlib
import json
import mimetypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.api_types import SystemOneRequest, parse_request
from serving.errors import InvalidRequestError
from serving.strict_json import json_kind, parse, shorten

MAX_DEPTH = 64  # levels of objects and arrays in a line
# What else a request may hold is sent as it stands in the record; keys that are no request's are not sent.
_SENT = SystemOneRequest.model_fields.keys() - {"model", "images"}


class DataError(ValueError):
    """The data cannot be read; the message names the file, the line and the field."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One request with the index of the right option of each labelled question.

    Attributes:
        name: its id, or where it stands in its file.
        request: the body's fields, without `model` and `images`.
        labels: by question id, the index of the right option in `options_of`.
        images: data URLs, and files that are read when the record is asked.
        group: what it has in common with others, for figures of their own.
    """

    name: str
    request: Mapping[str, Any]
    labels: Mapping[str, int]
    images: Sequence[str | Path] = ()
    group: str | None = None

    def body(self) -> dict[str, Any]:
        """The request's fields, images as data URLs.

        Raises:
            OSError: an image cannot be read.
        """
        if not self.images:
            return dict(self.request)
        return {**self.request, "images": [_data_url(image) for image in self.images]}


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Records with the digest of the file they came from; `left_out` counts those of it that are not asked, by reason."""

    records: Sequence[Record]
    sha256: str
    left_out: Mapping[str, int] = field(default_factory=dict)


def asked_sha256(records: Sequence[Record]) -> str:
    """Digest of all that is asked and of its labels, images by their names: equal where figures can be held to each other."""
    digest = hashlib.sha256()
    for record in records:
        images = [image if isinstance(image, str) else image.name for image in record.images]
        digest.update(json.dumps([record.request, record.labels, images], sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def options_of(question: Mapping[str, Any]) -> list[str]:
    """The names of a question's options: yes before no, options as sent, levels from 0."""
    if question["type"] == "noul":
        return ["true", "false"]
    if question["type"] == "choice":
        return list(question["criteria"])
    return [str(level) for level in range(len(question["criteria"]))]


def read_records(path: Path, *, group_by: str | None = None) -> Dataset:
    """The records of a file of JSON lines.

    Args:
        group_by: a key of every record, whose value becomes its group; of an `id`, what stands before its first slash.

    Raises:
        DataError: the file cannot be read, or a line is not such a record.
    """
    content = read_bytes(path)
    records = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(_record(parse(line, max_depth=MAX_DEPTH), f"line {number}", path.parent, group_by))
        except InvalidRequestError as err:
            fault = err.faults[0]
            raise DataError(f"{path}, line {number}: {fault['msg'].replace('the body', 'the line', 1)}") from err
        except ValueError as err:
            raise DataError(f"{path}, line {number}: {err}") from err
    if not records:
        raise DataError(f"{path} holds no record")
    return Dataset(records=records, sha256=hashlib.sha256(content).hexdigest())


def read_bytes(path: Path) -> bytes:
    """The file's content.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as err:
        raise DataError(f"{path} cannot be read: {err.strerror}") from err


def _record(read: Any, name: str, directory: Path, group_by: str | None) -> Record:
    # Counts are each server's own business, hence no limit here; those of one question are the API's.
    parse_request(read, max_questions=sys.maxsize, max_options=sys.maxsize)
    questions = read["questions"]
    for question_id, question in questions.items():
        if question["type"] != "noul" and len(question["criteria"]) < 2:
            raise ValueError(f"questions.{shorten(question_id)}.criteria needs at least 2 options or levels")
    return Record(
        name=_scalar(read, "id") if "id" in read else name,
        request={key: value for key, value in read.items() if key in _SENT and value is not None},
        labels=dict(_labels(read.get("labels"), questions)),
        images=[_image(image, index, directory) for index, image in enumerate(read.get("images") or ())],
        group=None if group_by is None else _group(read, group_by),
    )


def _scalar(read: Mapping[str, Any], key: str) -> str:
    if key not in read:
        raise ValueError(f"{shorten(key)} is missing")
    if not isinstance(read[key], str | int | float):
        raise ValueError(f"{shorten(key)} must be text, a number or a boolean, not {json_kind(read[key])}")
    return str(read[key])


def _group(read: Mapping[str, Any], key: str) -> str:
    value = _scalar(read, key)
    return value.partition("/")[0] if key == "id" else value  # whole ids would make each record a group of its own


def _labels(labels: Any, questions: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    if not isinstance(labels, dict) or not labels:
        raise ValueError("labels must be an object with at least one label")
    for question_id, label in labels.items():
        field_name = f"labels.{shorten(question_id)}"
        if question_id not in questions:
            raise ValueError(f"{field_name} is the label of no question")
        question = questions[question_id]
        options = options_of(question)
        named = _named(question["type"], label)
        if named not in options:
            allowed = {
                "noul": "true or false",
                "choice": f"one of the {len(options)} options",
                "score": f"a level from 0 to {len(options) - 1}",
            }
            raise ValueError(f"{field_name} must be {allowed[question['type']]}")
        yield question_id, options.index(named)


def _named(question_type: str, label: Any) -> str | None:
    """The option that a label means; None if it can mean none."""
    match question_type, label:
        case "noul", bool():
            return str(label).lower()
        case "noul", str():
            return label.lower()
        case "choice", str():
            return label
        case "score", int() if not isinstance(label, bool):
            return str(label)
        case "score", str() if label.strip().isdecimal():
            return str(int(label))
    return None


def _image(image: Any, index: int, directory: Path) -> str | Path:
    if not isinstance(image, str):
        raise ValueError(f"images.{index} must be the path of a file, or a data URL")
    if image.startswith("data:"):
        return image
    if not (directory / image).is_file():  # an absolute path stays one
        raise ValueError(f"images.{index}: there is no file {shorten(image)}")
    return directory / image


def _data_url(image: str | Path) -> str:
    if isinstance(image, str):
        return image
    # The bytes decide what it is; the type only has to be an image's.
    kind = mimetypes.guess_type(image.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(image.read_bytes()).decode()}"

"""Settings are checked when they are built, and each one explains itself."""

import dataclasses
from typing import Any

import pytest

from serving.settings import ServingSettings
from tests.serving.harness import settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"served_model_name": ""}, "served_model_name must not be empty"),
        ({"model_aliases": ("jev-latest", "")}, "model_aliases must not hold an empty name"),
        ({"confidence": "max"}, "confidence must be one of typesafe, reference, not 'max'"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens must be a whole number, at least 1, not 0"),
        ({"max_prompt_tokens": 1.5}, "max_prompt_tokens must be a whole number, at least 1, not 1.5"),
        ({"max_body_bytes": -1}, "max_body_bytes must be a whole number, at least 1, not -1"),
        ({"max_nesting_depth": 3}, "max_nesting_depth must be a whole number, 4 to 200, not 3"),
        ({"max_nesting_depth": 201}, "max_nesting_depth must be a whole number, 4 to 200, not 201"),
        ({"schema_cache_entries": -1}, "schema_cache_entries must be a whole number, at least 0, not -1"),
        ({"schema_cache_tokens": True}, "schema_cache_tokens must be a whole number, at least 0, not True"),
        (
            {"max_bodies_memory": 9, "max_body_bytes": 10},
            r"max_bodies_memory must be at least max_body_bytes \(10\), not 9",
        ),
        ({"max_media_memory": 1}, r"max_media_memory must be at least max_decoded_bytes \(2147483648\), not 1"),
        ({"tokenizer_threads": 0}, "tokenizer_threads must be a whole number, at least 1, not 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        settings(**changes)


def test_every_field_has_help() -> None:
    assert all(field.metadata["help"] for field in dataclasses.fields(ServingSettings))


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().confidence = "reference"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("served", "aliases", "names"),
    [
        ("Example/clef-demo", ("jev-latest",), ("Example/clef-demo", "clef-demo", "jev-latest")),
        ("clef", ("jev-latest", "clef"), ("clef", "jev-latest")),
        ("/models/clef-demo", (), ("/models/clef-demo", "clef-demo")),
    ],
)
def test_accepted_names(served: str, aliases: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert settings(served_model_name=served, model_aliases=aliases).accepted_names == names

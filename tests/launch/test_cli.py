"""The command line itself: help, mistakes, and how light it is."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import cli
from launch.up import is_own


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
        (["profiles", "--", "--tp-size", "2"], {}, "profiles starts no engine, and takes nothing after --"),
        (["plan", "--gpu", "h200", "--model", "clef", "--tp", "3"], {}, "tp must be one of 1, 2, 4, 8, not 3"),
        (["keys", "create", "--name", "a b", "--tenant", "t"], {}, "name"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2_and_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(arguments, environ)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_plan_needs_neither_gpu_nor_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "--gpu", "h200", "--model", "clef-flash", "--json", "--", "--page-size", "64"], {}) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] is True
    assert cli.run(["profiles"], {}) == 0
    assert capsys.readouterr().out.startswith("throughput (default): ")


def test_a_key_is_the_one_line_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["keys", "create", "--name", "orders", "--tenant", "orders-team"], {}) == 0
    shown = capsys.readouterr()
    assert re.fullmatch(r"clef_[A-Za-z0-9_-]{43}\n", shown.out)
    assert 'tenant = "orders-team"' in shown.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "clef.example"])
def test_other_addresses_need_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path, host: str) -> None:
    from benchmarks.random_release import build_random_release

    release = build_random_release(tmp_path / "release")
    assert cli.run(["up", "--device", "cpu", "--model", str(release), "--host", host], {}) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"without API keys anyone who reaches {host} could ask: name a file with --api-keys" in last


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("::", False)],
)
def test_which_addresses_are_this_machine_s_own(host: str, own: bool) -> None:
    assert is_own(host) == own


def test_a_checkpoint_that_cannot_be_served_ends_with_status_2_and_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.run(["up", "--device", "cpu", "--model", str(tmp_path)], {}) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("clef-serve: error: config.json is missing or not JSON: ")


def test_more_prompt_tokens_than_the_checkpoint_has_positions_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from benchmarks.random_release import build_random_release

    release = build_random_release(tmp_path / "release")
    assert cli.run(["up", "--device", "cpu", "--model", str(release)], {"CLEF_MAX_PROMPT_TOKENS": "70000"}) == 2
    assert "exceeds the checkpoint's context of 65536 tokens" in capsys.readouterr().err.splitlines()[-1]

"""The GPU benchmarks' scripts, up to the Python programs they run, which are played by a stand-in."""

import json
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"
SCRIPT, RUN_ALL = SCRIPTS / "prefix_sharing.sh", SCRIPTS / "run_all.sh"
# Answers the script's question about the device, pretty-prints JSON as asked, and prints its own arguments as the report.
STAND_IN = """#!/usr/bin/env bash
case "$1" in
  -c) echo "${DEVICE_ANSWER:-usable}" ;;
  -m)
    if [[ $2 == json.tool ]]; then exec python3 "$@"; fi
    echo "a table"
    python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@"
    exit "${STATUS:-0}" ;;
esac
"""


def run(tmp_path: Path, *arguments: str, script: Path = SCRIPT, **environ: str) -> "subprocess.CompletedProcess[str]":
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHON": str(python), "OUT": "out.json"} | environ
    return subprocess.run([script, *arguments], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)


def test_the_last_line_is_written(tmp_path: Path) -> None:
    done = run(tmp_path, "--state-tokens", "16384")
    assert done.returncode == 0, done.stderr
    arguments = json.loads((tmp_path / "out.json").read_text())
    assert arguments[:2] == ["-m", "benchmarks.prefix_sharing"]
    assert arguments[-2:] == ["--state-tokens", "16384"]
    assert arguments[arguments.index("--random-shape") + 1] == "clef-flash"
    assert "--engine-arg=--max-total-tokens" in arguments


def test_a_release_is_found_from_where_the_script_was_called(tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    assert run(tmp_path, MODEL="release").returncode == 0
    arguments = json.loads((tmp_path / "out.json").read_text())
    assert arguments[arguments.index("--model") + 1] == str(tmp_path / "release")


def test_run_all_writes_what_both_programs_say(tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    done = run(tmp_path, "--slo", "p99<200ms", script=RUN_ALL, OUT="measured", MODEL="release")
    assert done.returncode == 0, done.stderr
    release = str(tmp_path / "release")
    server, shared = (
        json.loads((tmp_path / "measured" / f"{name}.json").read_text()) for name in ("server", "prefix-sharing")
    )
    assert server == ["-m", "benchmarks.gpu.run_all", "--model", release, "--slo", "p99<200ms"]
    assert shared[:2] == ["-m", "benchmarks.prefix_sharing"]
    assert shared[shared.index("--model") + 1] == release


def test_run_all_can_leave_stock_out(tmp_path: Path) -> None:
    assert run(tmp_path, script=RUN_ALL, OUT="measured", STOCK="0").returncode == 0
    assert sorted(path.name for path in (tmp_path / "measured").iterdir()) == ["server.json", "server.txt"]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"DEVICE_ANSWER": "no NVIDIA driver"}, "no NVIDIA driver"),
        ({"MODEL": "absent"}, "MODEL=absent is not a directory"),
        ({"PYTHON": "/absent/python"}, "make install"),
        ({"OUT": "file/out.json"}, "cannot write"),
    ],
    ids=["no GPU", "no model", "no environment", "no place to write"],
)
@pytest.mark.parametrize("script", [SCRIPT, RUN_ALL], ids=lambda path: path.stem)
def test_what_is_missing_is_named(script: Path, environ: dict[str, str], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path, script=script, **environ)
    assert done.returncode == 1
    assert said in done.stderr


def test_a_failure_of_the_program_is_the_scripts(tmp_path: Path) -> None:
    assert run(tmp_path, STATUS="7").returncode == 7
    assert run(tmp_path, script=RUN_ALL, STATUS="7", OUT="measured").returncode == 7

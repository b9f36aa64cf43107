"""Calls a function in a fresh process, so that what SGLang does on import stays out of the tests' own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model_plugin import cpu

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240
# Imports the function's module and nothing else of ours.
CHILD = """
import importlib, json, sys
module, name, arguments = sys.argv[1:]
print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(arguments))))
"""


def run(
    function: Callable[..., Any], *arguments: Any, on_cpu: bool = True, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Call it there; SGLang's CPU engine is asked for in the environment, or nothing of ours is there at all."""
    ours = ("SGLANG_", "PYTHONPATH")
    prepared = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    prepared |= {"PYTHONWARNINGS": "ignore"} | dict(environ or {})
    if on_cpu:
        cpu.activate("float32", environ=prepared)
    return subprocess.run(
        [sys.executable, "-c", CHILD, function.__module__, function.__name__, json.dumps(arguments)],
        cwd=ROOT,
        env=prepared,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def result(
    function: Callable[..., Any], *arguments: Any, on_cpu: bool = True, environ: Mapping[str, str] | None = None
) -> Any:
    """What the function returns there, by way of JSON."""
    done = run(function, *arguments, on_cpu=on_cpu, environ=environ)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def last_line_of_failed(function: Callable[..., Any], *arguments: Any) -> str:
    """The last line on stderr of a process that must have ended with status 1."""
    done = run(function, *arguments)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr[-3000:])
    return done.stderr.splitlines()[-1]

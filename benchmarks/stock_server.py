"""Serves a Clef release with SGLang as it is, for comparisons; nothing of ours but, on a CPU, the kernels it lacks there.

It gets the arguments that `clef-serve up` gives its engine. Run it with `python -m benchmarks.stock_server --model PATH --port
8001`; it ends with Ctrl-C or SIGTERM.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks._sides import ROOT, SideSettings, environment
from serving.engine import EngineSettings

SERVER = "sglang.launch_server"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stock_server", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="directory of a Clef release")
    parser.add_argument("--port", type=int, required=True, help="TCP port, on this machine's own address")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="(default: %(default)s)")
    parser.add_argument("--max-prompt-tokens", type=int, default=16384, help="longest prompt (default: %(default)s)")
    parser.add_argument(
        "arguments", nargs="*", metavar="-- SGLANG_ARGUMENT", help="further arguments of SGLang's server"
    )
    return parser.parse_args(argv)


def command(settings: EngineSettings, port: int) -> list[str]:
    """SGLang's server with the arguments that our engine gets."""
    address = ["--host", "127.0.0.1", "--port", str(port)]
    return [sys.executable, "-m", SERVER, *settings.arguments(), *address]


def main() -> int:
    """Serve until told to stop."""
    given = parse_arguments()
    settings = EngineSettings(
        model_path=str(given.model),
        device=given.device,
        dtype=given.dtype,
        max_prompt_tokens=given.max_prompt_tokens,
        served_model_name="stock",
        extra_args=tuple(given.arguments),
    )
    sides = SideSettings(
        model_path=given.model,
        device=given.device,
        dtype=given.dtype,
        max_prompt_tokens=given.max_prompt_tokens,
    )
    with tempfile.TemporaryDirectory(prefix="clef-benchmark-stock-") as directory:
        environ = environment("stock", sides, Path(directory))
        environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
        server = subprocess.Popen(command(settings, given.port), cwd=ROOT, env=environ, start_new_session=True)
        # Its main process alone is told: it ends the others in order, and what is left of them is ended here.
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        signal.signal(signal.SIGINT, lambda *_: server.terminate())
        status = server.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        return 0 if status == -signal.SIGTERM else status


if __name__ == "__main__":
    sys.exit(main())

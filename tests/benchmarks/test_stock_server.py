"""How SGLang as it is gets started for a comparison. Starts no server."""

import sys

from benchmarks.stock_server import command, parse_arguments
from serving.engine import EngineSettings


def test_it_gets_the_arguments_of_our_engine_and_an_address_of_this_machine() -> None:
    settings = EngineSettings(
        model_path="/release",
        device="cpu",
        dtype="float32",
        max_prompt_tokens=4096,
        served_model_name="stock",
        extra_args=("--tp-size", "2"),
    )
    assert command(settings, 8001) == [
        *(sys.executable, "-m", "sglang.launch_server"),
        *settings.arguments(),
        *("--host", "127.0.0.1", "--port", "8001"),
    ]


def test_further_arguments_follow_two_dashes() -> None:
    given = parse_arguments(["--model", "m", "--port", "8001", "--", "--tp-size", "2"])
    assert (given.arguments, given.dtype, given.max_prompt_tokens) == (["--tp-size", "2"], "bfloat16", 16384)

"""`clef-serve up`, step by step: device, checkpoint, port, engine, front. What is heavy is imported when needed."""

import contextlib
import ipaddress
import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launch.checkpoint_source import CheckpointSourceError, FoundCheckpoint, find_checkpoint
from launch.device import Device, choose_device, use_installed_compilers
from launch.settings import Dtype, ProfileChoice, UpSettings
from model_plugin.checkpoint import CheckpointError, Release, read_release

if TYPE_CHECKING:
    from launch.server import Address
    from serving.auth import KeyRing
    from serving.engine import EngineSettings, SGLangEngine
    from serving.metrics import Metrics
    from serving.tracing import Tracing

# The context Cloudflare documents for Clef; a checkpoint's own positions may go further than what was trained.
DOCUMENTED_CONTEXT_TOKENS = 65_536
# The request in the `curl` line printed when ready. No single quote in it, so that it reads well in a shell.
EXAMPLE_STATE = "Disk /var on db-03 is 97 percent full and grows by 4 GB per hour."
EXAMPLE_QUESTIONS = {
    "page": {"type": "noul", "instructions": "Should someone be woken up for this?"},
    "team": {
        "type": "choice",
        "instructions": "Which team handles it?",
        "criteria": {"storage": "disks and file systems", "network": "links and routers"},
    },
}


class UsageError(ValueError):
    """What was asked for cannot be done; the message says why and what to do."""


def say(message: str) -> None:
    """One line of progress, on stderr and at once."""
    print(f"clef-serve: {message}", file=sys.stderr, flush=True)


def up(settings: UpSettings) -> int:
    """Serve until told to stop; the process's exit status. Must run in the main thread.

    Raises:
        UsageError: what the settings ask for cannot be had.
    """
    try:
        device, why = choose_device(settings.device)
        say(f"device: {device} ({why})")
        found = find_checkpoint(settings.model, revision=settings.revision, device=device, say=say)
        say(f"checkpoint: {found.path}")
        if found.demonstration:
            say(f"{found.name} is for trying the server: it knows a few invented domains, and is no Clef model")
        release = read_release(found.path)
        limit = prompt_limit(settings.max_prompt_tokens, release)
        engine_args = profile_arguments(settings.profile, device, found, settings.engine_args)
    except (CheckpointSourceError, CheckpointError, ValueError) as err:
        raise UsageError(str(err)) from err
    return _serve(settings, device, found, limit, engine_args)


def profile_arguments(
    profile: ProfileChoice, device: Device, found: FoundCheckpoint, given: tuple[str, ...]
) -> list[str]:
    """SGLang's server arguments that a profile stands for on the GPUs of this machine, and the user's.

    Raises:
        ValueError: there is no profile for this machine or this release, or it does not fit.
    """
    if profile == "none":
        return list(given)
    if device == "cpu":
        raise ValueError(f"--profile {profile} is for GPUs; on a CPU leave it out")
    from launch.plan.gpu_detect import detect_gpu
    from launch.plan.plan import PlanInputs, make_plan
    from launch.plan.profile import DEFAULT_PROFILE
    from launch.plan.user_arguments import read_user_arguments

    gpu = detect_gpu()
    name = DEFAULT_PROFILE if profile == "auto" else profile
    plan = make_plan(
        PlanInputs(gpu=gpu.name, model=str(found.path), profile=name, user=read_user_arguments(given)),
        with_changes=False,
    )
    if not plan.memory.fits:
        raise ValueError(
            f"profile {name} does not fit on {gpu.name}; what to change says "
            f"`clef-serve plan --gpu {gpu.name} --model {found.path} --profile {name}`"
        )
    say(f"profile: {name} on {gpu.name}")
    return plan.server_arguments


def prompt_limit(asked: int | None, release: Release) -> int:
    """The longest prompt to answer, in tokens.

    Raises:
        ValueError: more was asked for than the checkpoint has positions.
    """
    if asked is None:
        return min(DOCUMENTED_CONTEXT_TOKENS, release.context_tokens)
    if asked > release.context_tokens:
        raise ValueError(
            f"max-prompt-tokens {asked} exceeds the checkpoint's context of {release.context_tokens} tokens"
        )
    return asked


def _serve(settings: UpSettings, device: Device, found: FoundCheckpoint, limit: int, engine_args: list[str]) -> int:
    dtype: Dtype = "bfloat16" if settings.dtype == "auto" else settings.dtype
    if device == "cpu":
        from model_plugin.cpu import activate

        activate(dtype)  # before SGLang is first imported
    else:
        use_installed_compilers()

    from serving.engine import EngineSettings

    name = settings.served_model_name or found.name
    engine_settings = EngineSettings(
        model_path=str(found.path),
        device=device,
        dtype=dtype,
        max_prompt_tokens=limit,
        served_model_name=name,
        extra_args=tuple(engine_args),
    )
    with contextlib.ExitStack() as closing:
        try:
            surroundings = _surroundings(settings, name, found.revision, closing)
        except ValueError as err:
            raise UsageError(str(err)) from err
        say(f"loading the engine ({dtype}, prompts up to {limit} tokens) ...")
        engine = _load(engine_settings)
        if isinstance(engine, int):
            return engine
        closing.callback(engine.close)
        fatal = _run(settings, engine, surroundings, name, found.revision)
    if fatal is None:
        say("stopped")
        return 0
    say(fatal)
    # Not a return: what SGLang registered for the interpreter's end may wait for processes that are gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


@dataclass(frozen=True, kw_only=True)
class _Surroundings:
    """What a server needs besides its engine: had first, since loading takes minutes and a port in use a second."""

    address: "Address"
    keys: "KeyRing | None"
    metrics: "Metrics"
    tracing: "Tracing | None"


def _surroundings(
    settings: UpSettings, name: str, revision: str | None, closing: contextlib.ExitStack
) -> _Surroundings:
    """What the settings ask for; `closing` ends it.

    Raises:
        ValueError: something cannot be had.
    """
    from launch.server import bind, end_children
    from serving.metrics import Metrics, MetricsServer
    from serving.tracing import tracing_to_collector

    closing.callback(end_children)
    keys = key_ring(settings)
    address = bind(settings.host, settings.port)
    metrics = Metrics(served_model_name=name, revision=revision)
    if settings.metrics_port is not None:
        page = MetricsServer(metrics, host=settings.host, port=settings.metrics_port)
        closing.callback(page.close)
        say(f"metrics: port {page.port}")
    tracing = tracing_to_collector(settings.otlp_endpoint, os.environ, served_model_name=name)
    if tracing is not None:
        closing.callback(tracing.close)
    return _Surroundings(address=address, keys=keys, metrics=metrics, tracing=tracing)


def _load(settings: "EngineSettings") -> "SGLangEngine | int":
    """The engine, or the exit status if there is none."""
    from launch.server import StopRequested, stop_on_signals
    from serving.engine import EngineStartError, SGLangEngine

    started = time.monotonic()
    try:
        with stop_on_signals():
            engine = SGLangEngine.start(settings)
    except StopRequested:
        say("stopped while loading")
        return 0
    except EngineStartError as err:
        say(str(err))
        return 1
    say(f"engine loaded in {time.monotonic() - started:.0f} s, warming up ...")
    return engine


def key_ring(settings: UpSettings) -> "KeyRing | None":
    """Who may ask; None for anyone.

    Raises:
        ValueError: the keys cannot be read, or there are none and the address is not one of this machine's own.
    """
    from serving.auth import KeyRing

    if settings.api_keys is not None:
        return KeyRing(Path(settings.api_keys))
    if not settings.insecure and not is_own(settings.host):
        raise ValueError(
            f"without API keys anyone who reaches {settings.host} could ask: name a file with --api-keys (clef-serve keys "
            "create makes one), or say --insecure"
        )
    return None


def is_own(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _run(
    settings: UpSettings, engine: "SGLangEngine", surroundings: _Surroundings, name: str, revision: str | None
) -> str | None:
    """Serve until told to stop; why it ended otherwise."""
    from launch.server import Server
    from serving import request_log
    from serving.app import create_app
    from serving.lifecycle import Lifecycle
    from serving.settings import ServingSettings

    request_log.configure(settings.log_format)
    url = surroundings.address.url
    server = Server(surroundings.address, on_ready=lambda: print(ready_message(url, name), flush=True))
    surroundings.metrics.add_engine(engine.metrics_directory)

    async def bind_engine(lifecycle: Lifecycle) -> None:
        await engine.attach(lifecycle.fail)
        # SGLang has put handlers of its own on the loop by now; these replace them.
        server.take_signals(lifecycle)

    app = create_app(
        engine=engine,
        tokenizer=engine.tokenizer,
        processor=engine.processor,
        keys=surroundings.keys,
        metrics=surroundings.metrics,
        metrics_route=settings.metrics_port is None,
        tracing=surroundings.tracing,
        settings=ServingSettings(
            served_model_name=name,
            max_prompt_tokens=engine.max_prompt_tokens,
            model_revision=revision,
            **settings.front,
        ),
        on_startup=bind_engine,
        on_fatal=server.die,
    )
    server.run(app)
    return server.fatal


def ready_message(url: str, name: str) -> str:
    """What to print when the server is ready: where it is, and a command that works as it is."""
    body = json.dumps({"model": name, "state": EXAMPLE_STATE, "questions": EXAMPLE_QUESTIONS})
    command = f"curl -s {url}/v1/systemone -H 'content-type: application/json' -d {shlex.quote(body)}"
    return f"\nclef-serve is ready at {url}\n\nTry it:\n{command}\n"

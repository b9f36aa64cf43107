"""`clef-serve check`: looks at everything a server needs before it is started, and says for each what to do.

Takes the settings of `clef-serve up`, from the same flags and variables. Starts no server, downloads nothing, and puts
nothing on a GPU. What each check looks at, the modules `check_*` know.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from launch.check.gpu import (
    GpuFactsError,
    check_architecture,
    check_driver,
    check_gpu,
    check_memory,
    check_shared_memory,
    driver_cuda_version,
    no_gpu_checks,
    visible_gpus,
)
from launch.check.install import Built, check_locks, check_plugin, check_python, check_sglang
from launch.check.release import check_configuration, check_files, check_location
from launch.check.result import CheckResult, Status, failed, not_needed, passed
from launch.device import Device, choose_device
from launch.plan.profile import DEFAULT_PROFILE
from launch.settings import UpSettings

CHECK_HELP = """\
Look at everything that `clef-serve up` needs, with the same settings, before it is started: installation, GPU, memory,
release, port and keys. Takes half a minute, most of it to import SGLang. Nothing is started, downloaded or built.

Status 0: nothing failed; a warning is no failure. 1: something failed; each such line is followed by what to do.
"""
MARKS: dict[Status, str] = {"ok": "ok", "not needed": "-", "warning": "WARNING", "failed": "FAILED"}


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `check` takes beside the settings of `up` (`launch.settings.add_flags`)."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def check_command(settings: UpSettings, *, as_json: bool = False) -> int:
    """Print what the checks find; the exit status, as CHECK_HELP has it."""
    results = checks(settings)
    good = all(result.ok for result in results)
    if as_json:
        found = [vars(result) | {"ok": result.ok} for result in results]
        print(json.dumps({"passed": good, "checks": found}, ensure_ascii=False))
    else:
        print("\n".join(lines(results)))
    return 0 if good else 1


def lines(results: list[CheckResult]) -> list[str]:
    """A line for each check, one more for what to do, and one for all together."""
    width = max(len(result.name) for result in results)
    shown = []
    for result in results:
        shown.append(f"{MARKS[result.status]:<7}  {result.name:<{width}}  {result.line}")
        if result.remedy:
            shown.append(f"{'':<7}  {'':<{width}}  -> {result.remedy}")
    counted = {status: sum(result.status == status for result in results) for status in MARKS}
    shown.append(f"\n{counted['failed']} failed, {counted['warning']} warnings, {counted['ok']} ok")
    return shown


def checks(settings: UpSettings) -> list[CheckResult]:
    """Every check for these settings, in the order in which a start would meet them."""
    results = [check_python(), check_sglang()]
    try:
        device, why = choose_device(settings.device)
    except ValueError as err:
        remedy = "make a GPU visible here (driver, container toolkit), or serve without one: --device cpu"
        return [
            *results,
            failed("gpu", str(err), remedy),
            *_release_checks(settings, "cuda")[0],
            *_own_checks(settings),
        ]
    plugin, built = check_plugin(device)
    results += [plugin, check_locks(device)]
    release, path = _release_checks(settings, device)
    if device == "cuda":
        results += _gpu_checks(settings, built, path)
    elif settings.profile == "none":
        results += no_gpu_checks(f"serving on the CPU ({why})")
    else:
        line = f"--profile {settings.profile} is for GPUs, and the CPU would serve ({why})"
        results.append(failed("gpu", line, "make a GPU visible here, or leave --profile out"))
    return [*results, *release, *_own_checks(settings)]


def ranks(engine_args: Sequence[str]) -> int:
    """SGLang's tensor-parallel size among its arguments, whatever else stands there; what it refuses itself counts as 1."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--tp-size", "--tp", "--tensor-parallel-size", dest="size", default="1")
    size = parser.parse_known_args(list(engine_args))[0].size
    return max(1, int(size)) if size.isdecimal() else 1


def _gpu_checks(settings: UpSettings, built: Built | None, path: Path | None) -> Iterator[CheckResult]:
    try:
        tp = ranks(settings.engine_args)
        found = visible_gpus()
    except GpuFactsError as err:
        yield failed("gpu", str(err), "install nvidia-smi, or let the container toolkit mount it (capability utility)")
        return
    yield check_gpu(found, tp)
    used = found[:tp]
    if not used:
        return
    yield check_architecture(used, built)
    yield check_driver(used, built, driver_cuda_version())
    if path is None:
        yield not_needed("gpu memory", "no release to plan for; see the check of the release")
    else:
        profile = {"auto": DEFAULT_PROFILE, "none": None}.get(settings.profile, settings.profile)
        yield check_memory(used, path, tp=tp, profile=profile, engine_args=settings.engine_args)
    yield check_shared_memory(tp)


def _release_checks(settings: UpSettings, device: Device) -> tuple[list[CheckResult], Path | None]:
    results, found = check_location(settings, device)
    if found is None:
        return results, None
    results += [check_files(found.path), check_configuration(found.path, settings.max_prompt_tokens)]
    return results, found.path if all(result.ok for result in results) else None


def _own_checks(settings: UpSettings) -> Iterator[CheckResult]:
    yield check_port(settings)
    yield check_keys(settings)


def check_port(settings: UpSettings) -> CheckResult:
    """Whether a server could listen there now."""
    from launch.server import bind

    try:
        bind(settings.host, settings.port).listener.close()
    except ValueError as err:
        line, _, remedy = str(err).partition("; ")
        return failed("port", line, remedy)
    taken = f"port {settings.port}" if settings.port else "a port that is free then"
    return passed("port", f"{settings.host}, {taken}")


def check_keys(settings: UpSettings) -> CheckResult:
    """Whether the API keys can be read, or none are needed."""
    from launch.up import key_ring

    try:
        ring = key_ring(settings)
    except ValueError as err:
        return failed("keys", str(err), "see clef-serve keys create --help and the format in serving/key_file.py")
    if ring is None:
        return not_needed("keys", "no keys are asked for" + (", as --insecure says" if settings.insecure else ""))
    return passed("keys", f"the keys in {settings.api_keys} can be read")

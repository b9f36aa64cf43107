"""Checks of what is installed: Python, SGLang, the plugin inside it, and the locks. Knows no GPU and no release."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from launch.check.result import CheckResult, failed, not_needed, passed, warning
from launch.device import Device

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "clef-serving"
PLUGIN_GROUP, PLUGIN_NAME = "sglang.srt.plugins", "clef"
INSTALL_AGAIN = "install again with: make install"
# SGLang's import reads thousands of files, which takes a while from a cold disk.
PROBE_TIMEOUT_S = 300
SHOWN_DIFFERENCES = 3


@dataclass(frozen=True, kw_only=True)
class Built:
    """What PyTorch was built for: its CUDA version, None without CUDA, and architectures such as `sm_90`."""

    cuda: str | None
    built_for: tuple[str, ...]


def check_python() -> CheckResult:
    """Locks and wheels are for CPython 3.11 and 3.12 on Linux, x86-64."""
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    supported = (
        (3, 11) <= sys.version_info < (3, 13)
        and platform.python_implementation() == "CPython"
        and (platform.system(), platform.machine()) == ("Linux", "x86_64")
    )
    if supported:
        return passed("python", found)
    return failed("python", found, "use CPython 3.11 or 3.12 on Linux x86_64, and " + INSTALL_AGAIN)


def check_sglang() -> CheckResult:
    """The version this package asks for, which is the one whose private symbols its plugin knows."""
    from packaging.requirements import Requirement

    try:
        wanted = next(
            requirement
            for requirement in map(Requirement, metadata.requires(PACKAGE) or ())
            if requirement.name == "sglang"
        )
        found = metadata.version("sglang")
    except metadata.PackageNotFoundError as err:
        return failed("sglang", f"{err.name} is not installed in {sys.prefix}", INSTALL_AGAIN)
    if wanted.specifier.contains(found):
        return passed("sglang", f"SGLang {found}")
    return failed("sglang", f"SGLang {found} is installed, and {wanted} is needed", INSTALL_AGAIN)


def check_plugin(device: Device, environ: Mapping[str, str] = os.environ) -> tuple[CheckResult, Built | None]:
    """Whether SGLang finds the plugin, and its hooks apply, in a process of its own; and what PyTorch was built for."""
    found = [entry.value for entry in metadata.entry_points(group=PLUGIN_GROUP, name=PLUGIN_NAME)]
    if found != ["model_plugin:register"]:
        line = f"SGLang would not find it: the entry point {PLUGIN_NAME} of {PLUGIN_GROUP} is {found or 'missing'}"
        return failed("plugin", line, INSTALL_AGAIN), None
    allowed = [name.strip() for name in environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if allowed and PLUGIN_NAME not in allowed:
        line = f"SGLANG_PLUGINS names {', '.join(allowed)} and not {PLUGIN_NAME}"
        return failed("plugin", line, f"add {PLUGIN_NAME} to SGLANG_PLUGINS, or unset it"), None
    command = [sys.executable, "-m", "launch.check.plugin_probe", device]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, env=environ)  # noqa: S603 - our own command
    except subprocess.TimeoutExpired:
        line = f"SGLang could not be imported within {PROBE_TIMEOUT_S} s"
        return failed("plugin", line, "run it again once the disk has read the packages, or look at the disk"), None
    if ended.returncode:
        said = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
        ours = [line for line in said if line.startswith("clef-serving:")]
        reason = (ours or said or [f"ended with status {ended.returncode}"])[-1].removeprefix("clef-serving: ")
        return failed("plugin", reason, f"{INSTALL_AGAIN}; all of it: {' '.join(command)}"), None
    built = json.loads(ended.stdout.splitlines()[-1])
    line = "loaded in a process of SGLang, every hook in place"
    return passed("plugin", line), Built(cuda=built["cuda"], built_for=tuple(built["built_for"]))


def check_locks(device: Device, requirements: Path = ROOT / "requirements") -> CheckResult:
    """Whether what is installed is what the lock pins, where the lock is at hand, as in a checkout."""
    lock = requirements / f"{device}.txt"
    if not lock.is_file():
        return not_needed("locks", f"there is no {lock.name} beside the code to compare with")
    pins = _pins(lock.read_text(encoding="utf-8"))
    different = []
    for name, pinned in pins.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed = "missing"
        if installed != pinned:
            different.append(f"{name} {installed}, not {pinned}")
    if not different:
        return passed("locks", f"{len(pins)} packages, all as {lock.name} pins them")
    shown = "; ".join(different[:SHOWN_DIFFERENCES]) + ("; ..." if len(different) > SHOWN_DIFFERENCES else "")
    line = f"{len(different)} of {len(pins)} packages differ from {lock.name}: {shown}"
    return warning("locks", line, f"{INSTALL_AGAIN} DEVICE={device}")


def _pins(lock: str) -> dict[str, str]:
    """The version of each package that a lock has for this Python."""
    from packaging.requirements import Requirement

    pinned = (line.rstrip("\\ ") for line in lock.splitlines() if "==" in line and not line.startswith((" ", "#")))
    return {
        requirement.name: str(requirement.specifier).removeprefix("==")
        for requirement in map(Requirement, pinned)
        if requirement.marker is None or requirement.marker.evaluate()
    }

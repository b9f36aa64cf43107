"""The containers that fill the model cache and wait for it do so as the pod lets them: no root, no writable root file system.

What a kubelet does is done with Linux' own means: namespaces, an overlay on this machine's root, and mounts. Needs root.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.k8s.chart import Helm, Object, containers, engine, environment
from tests.launch.fake_hub import COMMIT, REPOSITORY, FakeHub
from tests.launch.running import ROOT

FILES = {
    "config.json": b'{"architectures": ["Qwen3_5ForConditionalGeneration"]}',
    "joint_head_config.json": b"{}",
    "joint_head.safetensors": b"head",
    "model.safetensors": b"weights",
    "tokenizer.json": b'{"model": {}}',
}
SNAPSHOT = f"/models/hub/models--{REPOSITORY.replace('/', '--')}/snapshots/{COMMIT}"
# Mounts last as long as their namespace, and that as long as its processes.
IN_A_NAMESPACE = ["unshare", "--mount", "--propagation", "private", "sh", "-euc"]
Run = Callable[..., subprocess.CompletedProcess[str]]


def may_mount(folder: Path) -> bool:
    """Whether this user may do what the tests do."""
    tried = subprocess.run([*IN_A_NAMESPACE, f"mount -t tmpfs none {folder}"], capture_output=True)
    return os.geteuid() == 0 and tried.returncode == 0


@pytest.fixture
def run(helm: Helm, tmp_path: Path) -> Run:
    """Runs a container of the rendered pods to its end, over volumes that stay from one to the next."""
    if not may_mount(tmp_path):
        pytest.skip("only root with namespaces can mount")
    objects = helm.objects({"model": {"repository": REPOSITORY, "revision": COMMIT}})
    (job,) = [found for found in objects if found["kind"] == "Job"]
    specs = {"job": job["spec"]["template"]["spec"], "engine": engine(objects)["spec"]["template"]["spec"]}
    group = specs["engine"]["securityContext"]["fsGroup"]
    for name in ("models", "caches", "tmp"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 0, group)
        (tmp_path / name).chmod(0o2770)  # as fsGroup makes it

    def run_container(of: str, name: str, **extra: str) -> subprocess.CompletedProcess[str]:
        spec = specs[of]
        (container,) = [c for c in containers({"spec": spec}) if c["name"] == name]
        script = "\n".join(_script(spec, container, tmp_path))
        path = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        return subprocess.run(
            [*IN_A_NAMESPACE, script], env=path | environment(container) | extra, capture_output=True, text=True
        )

    return run_container


def _script(spec: Object, container: Object, volumes: Path) -> list[str]:
    """Mounts what the container mounts, and becomes who it runs as."""
    security, root = spec["securityContext"], volumes / "root"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    # This machine's own Python may lie where only root may look.
    to_python = [str(parent).lstrip("/") for parent in Path(sys.base_prefix).parents]
    lines = [
        f"mkdir -p {root}",
        f"mount -t tmpfs none {root}",
        f"mkdir {root}/upper {root}/work {root}/merged",
        f"mount -t overlay none -o lowerdir=/,upperdir={root}/upper,workdir={root}/work {root}/merged",
        f"cd {root}/merged",
        f"chmod o+x ./{' ./'.join(to_python)}",
    ]
    for mount in container["volumeMounts"]:
        lines += [f"mkdir -p .{mount['mountPath']}", f"mount --bind {volumes}/{mount['name']} .{mount['mountPath']}"]
        if mount.get("readOnly"):
            lines.append(f"mount -o remount,bind,ro .{mount['mountPath']}")
    # A volume may have hidden the program: a checkout below /tmp, say.
    lines += [f"mkdir -p .{ROOT}", f"mount --bind {ROOT} .{ROOT}", f"mount -o remount,bind,ro .{ROOT}"]
    who = f"--reuid {security['runAsUser']} --regid {security['runAsGroup']} --groups {security['fsGroup']}"
    command = shlex.join([*container["command"], *container["args"]])
    started = f"cd / && exec setpriv {who} --bounding-set -all --inh-caps -all --no-new-privs {command}"
    return [*lines, f"mount -o remount,ro {root}/merged", f"exec chroot . sh -c {shlex.quote(started)}"]


def test_the_cache_is_filled_once_and_read_where_nothing_can_be_written(run: Run) -> None:
    with FakeHub(files=FILES).running() as hub:
        for _ in range(2):
            filled = run("job", "download", HF_ENDPOINT=hub.url)
            assert (filled.returncode, filled.stdout) == (0, SNAPSHOT + "\n"), filled.stderr
        assert sorted(hub.fetched()) == sorted(FILES)
    waited = run("engine", "wait-for-model")
    assert (waited.returncode, waited.stdout, waited.stderr) == (0, SNAPSHOT + "\n", "")

"""The plugin in the installed SGLang: every symbol it relies on is there, its model is served, and a fault ends the process.

SGLang is imported in fresh processes only; see `fresh_process`.
"""

import ast
from pathlib import Path
from typing import Any

import pytest

import model_plugin
from model_plugin.checkpoint import ARCHITECTURE
from model_plugin.cpu.hooks import CPU_HOOKS
from model_plugin.sglang_hooks import CALLED, HOOKS, REFUSED_ARGUMENTS, Hook, PluginError, Symbol, check_target
from tests.model_plugin import fresh_process, inside_sglang

ALL_HOOKS = (*HOOKS, *CPU_HOOKS)
SYMBOLS: tuple[Symbol, ...] = (*CALLED, *ALL_HOOKS)
OURS = "model_plugin.models.clef"
PLUGIN = Path(model_plugin.__file__).parent


# The symbols.


@pytest.fixture(scope="module")
def found() -> Any:
    return fresh_process.result(inside_sglang.findings)


@pytest.mark.parametrize("symbol", SYMBOLS, ids=lambda symbol: symbol.target)
def test_sglang_has_the_symbol_as_expected(symbol: Symbol, found: Any) -> None:
    assert found["faults"].get(symbol.target) is None
    assert symbol.reason


@pytest.mark.parametrize("hook", ALL_HOOKS, ids=lambda hook: hook.target)
def test_the_hook_is_in_place(hook: Hook, found: Any) -> None:
    assert hook.target in found["in_place"]


def test_the_model_is_served(found: Any) -> None:
    assert found["served"] == OURS


@pytest.mark.parametrize("path", sorted(PLUGIN.rglob("*.py")), ids=lambda path: str(path.relative_to(PLUGIN)))
def test_every_symbol_of_sglang_is_in_a_table(path: Path) -> None:
    listed = {symbol.target for symbol in SYMBOLS}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            # `sglang` itself is asked for its version.
            assert all(alias.name == "sglang" or not alias.name.startswith("sglang") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang"):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                assert any(target == name or target.startswith(f"{name}.") for target in listed), name


def test_no_symbol_is_in_the_tables_twice() -> None:
    targets = [symbol.target for symbol in SYMBOLS]
    assert len(targets) == len(set(targets))


class Example:
    """Stands for a class of SGLang."""

    def method(self, one: int, two: int) -> None: ...


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("Example.renamed", ("self", "one", "two"), r"SGLang has no \S+\.Example\.renamed .*an example"),
        ("Gone.method", ("self", "one", "two"), r"SGLang has no \S+\.Gone\.method .*an example"),
        ("Example.method", ("self", "one"), r"\.Example\.method takes .*'two'\), expected .*an example"),
        ("Example.method", ("self", "two", "one"), r"\.Example\.method takes "),
    ],
)
def test_a_symbol_that_changed_is_named(name: str, parameters: tuple[str, ...], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        check_target(Symbol(target=f"{__name__}.{name}", parameters=parameters, reason="an example"))


def test_a_symbol_as_expected_passes() -> None:
    check_target(Symbol(target=f"{__name__}.Example.method", parameters=("self", "one", "two"), reason="an example"))
    check_target(Symbol(target=f"{__name__}.Example", parameters=None, reason="an example"))


def test_a_module_that_is_gone_is_named() -> None:
    with pytest.raises(PluginError, match=r"SGLang has no nowhere_at_all\.thing"):
        check_target(Symbol(target="nowhere_at_all.thing", parameters=None, reason="an example"))


# Faults. SGLang catches every Exception of a plugin, logs it and serves without: the process must end all the same.


def test_an_unsupported_sglang_ends_the_process_and_says_what_to_do() -> None:
    assert fresh_process.last_line_of_failed(inside_sglang.load_plugins_into_sglang, "0.5.24") == (
        "clef-serving: SGLang 0.5.24 is installed, this plugin supports 0.5.23; install a supported version (make install) "
        "or a newer clef-serving"
    )


def test_a_symbol_that_is_gone_ends_the_process() -> None:
    target = "sglang.srt.managers.schedule_batch._MambaRadixCacheV2TrackEntry"
    line = fresh_process.last_line_of_failed(inside_sglang.load_plugins_without, target)
    assert line.startswith(f"clef-serving: SGLang has no {target} ")


def test_a_model_that_cannot_be_imported_ends_the_process() -> None:
    line = fresh_process.last_line_of_failed(inside_sglang.load_plugins_where_the_model_cannot_be_imported)
    assert line.startswith("clef-serving: the plugin cannot be installed: ModuleNotFoundError")
    assert "model_plugin.schema_head" in line


def test_a_hook_that_does_not_apply_is_an_error(found: Any) -> None:
    message = "clef-serving: the hook on builtins.str.upper did not apply; see the log (an example)"
    assert found["failing_hook"] == message


def test_the_error_is_none_that_sglang_catches() -> None:
    assert issubclass(PluginError, SystemExit)
    assert not issubclass(PluginError, Exception)


# The model.


def test_the_model_is_served_beside_the_users_own_package(tmp_path: Path) -> None:
    package = tmp_path / "users_models"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "classes.py").write_text(
        f"class {ARCHITECTURE}: ...\nclass UsersModel: ...\nEntryClass = [{ARCHITECTURE}, UsersModel]\n"
    )
    environ = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "users_models", "PYTHONPATH": str(tmp_path)}
    modules = fresh_process.result(inside_sglang.served_modules, False, ARCHITECTURE, "UsersModel", environ=environ)
    assert modules == [OURS, "users_models.classes"]


def test_the_model_is_served_where_the_registry_was_imported_first() -> None:
    modules = fresh_process.result(inside_sglang.served_modules, True, ARCHITECTURE, "Qwen3ForCausalLM")
    assert modules == [OURS, "sglang.srt.models.qwen3"]


# SGLang's own objects, with the hooks in place.


def test_the_cache_serves_no_more_than_the_state(found: Any) -> None:
    assert found["prefixes"] == [70, 99, 49]


def test_a_request_that_the_scheduler_refuses_loses_its_layout(found: Any) -> None:
    assert found["aborted_layout"] is None


def test_sglangs_own_route_says_where_the_state_ends(found: Any) -> None:
    before, after = found["state_end"]
    assert before.endswith("STATE:\nthe state")
    assert after.startswith("\n\nSCHEMA FIELDS:\n")


@pytest.mark.parametrize(("name", "fine"), [(name, fine) for name, (fine, _) in REFUSED_ARGUMENTS.items()])
def test_a_refused_argument_is_sglangs_and_off_by_default(name: str, fine: Any, found: Any) -> None:
    default = found["argument_defaults"][f"--{name.replace('_', '-')}"]
    assert default == fine or not default


# A CUDA machine.


def test_nothing_of_the_cpu_platform_is_imported_unless_it_is_asked_for() -> None:
    """All of the plugin is loaded as on a CUDA machine, which differs for it in this alone: nobody asked for the CPU engine.

    Nothing is faked: SGLang imports without its compiled kernels, and `is_cpu` asks the environment, not the machine.
    """
    there = fresh_process.result(inside_sglang.what_is_loaded, on_cpu=False)
    assert there == {
        "installed": True,
        "hooks": len(HOOKS),
        "served": OURS,
        "cpu_modules": [],
        "stand_in_on_path": False,
    }


def test_the_cpu_platform_is_imported_where_it_is_asked_for(found: Any) -> None:
    assert found["hooks"] == len(ALL_HOOKS)
    assert found["stand_in_on_path"]
    assert {"model_plugin.cpu.hooks", "sgl_kernel"} <= set(found["cpu_modules"])

"""Settings of `clef-serve up`: where a value comes from, and what a wrong one is told."""

import argparse
from dataclasses import fields

import pytest

from launch.cli import split_arguments
from launch.settings import UpSettings, add_flags, as_arguments, flag, resolve, variable

GIVEN = {
    "model": "Cloudflare/clef",
    "revision": "abc",
    "device": "cpu",
    "dtype": "float32",
    "host": "0.0.0.0",
    "port": "9000",
    "served_model_name": "mine",
    "max_prompt_tokens": "1024",
    "confidence": "reference",
}
PARSED = UpSettings(**{**GIVEN, "port": 9000, "max_prompt_tokens": 1024})  # type: ignore[arg-type]


def test_nothing_given_is_the_defaults() -> None:
    settings = resolve({}, {})
    assert settings == UpSettings()
    assert (settings.device, settings.dtype, settings.host, settings.port) == ("auto", "auto", "127.0.0.1", 8000)
    assert (settings.model, settings.max_prompt_tokens, settings.confidence) == (None, None, "typesafe")


def test_every_setting_has_a_flag_and_a_variable() -> None:
    assert {entry.name for entry in fields(UpSettings)} == {*GIVEN, "engine_args"}
    assert resolve(GIVEN, {}) == PARSED
    assert resolve({}, {variable(name): value for name, value in GIVEN.items()}) == PARSED


@pytest.mark.parametrize("name", GIVEN)
def test_the_command_line_wins_over_the_environment(name: str) -> None:
    other = {"device": "cuda", "dtype": "bfloat16", "port": "1", "max_prompt_tokens": "1", "confidence": "typesafe"}
    settings = resolve({name: GIVEN[name]}, {variable(name): other.get(name, "other")})
    assert getattr(settings, name) == getattr(PARSED, name)


def test_an_empty_variable_counts_as_unset_and_an_empty_flag_does_not() -> None:
    assert resolve({}, {"CLEF_MODEL": "", "CLEF_PORT": ""}) == UpSettings()
    with pytest.raises(ValueError, match="^--model must not be empty$"):
        resolve({"model": ""}, {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("device", "tpu", "must be one of auto, cuda, cpu, not 'tpu'"),
        ("dtype", "float16", "must be one of auto, bfloat16, float32, not 'float16'"),
        ("confidence", "max", "must be one of typesafe, reference, not 'max'"),
        ("port", "65536", "must be a whole number from 0 to 65535, not '65536'"),
        ("port", "-1", "must be a whole number from 0 to 65535, not '-1'"),
        ("port", "8_000", "must be a whole number from 0 to 65535, not '8_000'"),
        ("max_prompt_tokens", "0", "must be a whole number of at least 1, not '0'"),
        ("max_prompt_tokens", "64k", "must be a whole number of at least 1, not '64k'"),
        ("max_prompt_tokens", "²", "must be a whole number of at least 1, not '²'"),
    ],
)
def test_a_wrong_value_names_where_it_came_from(name: str, value: str, message: str) -> None:
    for given, environ, origin in (({name: value}, {}, flag(name)), ({}, {variable(name): value}, variable(name))):
        with pytest.raises(ValueError, match="must") as caught:
            resolve(given, environ)
        assert str(caught.value) == f"{origin} {message}"


def test_engine_arguments_are_what_follows_the_first_double_dash() -> None:
    assert split_arguments(["up", "--port", "1", "--", "--tp-size", "2", "--"]) == (
        ["up", "--port", "1"],
        ("--tp-size", "2", "--"),
    )
    assert split_arguments(["up"]) == (["up"], ())


def test_settings_survive_the_way_through_a_command_line() -> None:
    settings = resolve(GIVEN, {}, ("--tp-size", "2"))
    own, engine_args = split_arguments(as_arguments(settings, port="0"))
    parser = argparse.ArgumentParser()
    add_flags(parser)
    again = resolve(vars(parser.parse_args(own)), {}, engine_args)
    assert again == UpSettings(**{**vars(settings), "port": 0})


def test_help_gives_every_flag_its_variable_and_default() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = " ".join(parser.format_help().split())
    for name in GIVEN:
        assert flag(name) in text
        assert f"[{variable(name)}; default: " in text

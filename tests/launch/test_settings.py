"""Settings of `clef-serve up`: where a value comes from, and what a wrong one is told."""

import argparse
from dataclasses import fields
from datetime import date
from typing import Any, get_args

import pytest

from launch.cli import split_arguments
from launch.plan.profile import profiles
from launch.settings import ProfileChoice, UpSettings, add_flags, as_arguments, flag, resolve, variable
from serving.media.limits import MediaLimits
from serving.settings import ServingSettings

GIVEN = {
    "model": "Cloudflare/clef",
    "revision": "abc",
    "device": "cpu",
    "dtype": "float32",
    "profile": "latency",
    "host": "0.0.0.0",
    "port": "9000",
    "served_model_name": "mine",
    "max_prompt_tokens": "1024",
    "insecure": "true",
    "api_keys": "keys.toml",
    "metrics_port": "9001",
    "log_format": "json",
    "otlp_endpoint": "http://127.0.0.1:4318",
}
FRONT = {
    "confidence": "reference",
    "exact_control_tokens": "true",
    "max_questions": "7",
    "media_hosts": "media.example, cdn.example:8443",
    "release_date": "2026-10-01",
    "max_images": "3",
    "max_aspect_ratio": "1.5",
}
PARSED = UpSettings(
    **{**GIVEN, "port": 9000, "max_prompt_tokens": 1024, "insecure": True, "metrics_port": 9001},  # type: ignore[arg-type]
    front={
        "confidence": "reference",
        "exact_control_tokens": True,
        "max_questions": 7,
        "media_hosts": ("media.example", "cdn.example:8443"),
        "release_date": date(2026, 10, 1),
        "media": MediaLimits(max_images=3, max_aspect_ratio=1.5),
    },
)
GIVEN_ALL = GIVEN | FRONT


def found(settings: UpSettings, name: str) -> Any:
    front = dict(settings.front)
    return vars(settings).get(name, front.get(name, getattr(front["media"], name, None)))


def test_nothing_given_is_the_defaults() -> None:
    settings = resolve({}, {})
    assert settings == UpSettings()
    assert (settings.device, settings.dtype, settings.host, settings.port) == ("auto", "auto", "127.0.0.1", 8000)
    assert (settings.model, settings.max_prompt_tokens, settings.front) == (None, None, {"media": MediaLimits()})
    assert (settings.insecure, settings.api_keys) == (False, None)


def test_every_setting_has_a_flag_and_a_variable() -> None:
    assert {entry.name for entry in fields(UpSettings)} == {*GIVEN, "front", "engine_args"}
    assert resolve(GIVEN_ALL, {}) == PARSED
    assert resolve({}, {variable(name): value for name, value in GIVEN_ALL.items()}) == PARSED


def test_every_setting_of_the_front_that_an_operator_may_choose_is_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    known = vars(parser.parse_args([]))
    assert {entry.name for entry in fields(ServingSettings)} - known.keys() == {"model_revision", "media"}
    assert {entry.name for entry in fields(MediaLimits)} <= known.keys()


def test_a_yes_needs_no_value() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    given = vars(parser.parse_args(["--exact-control-tokens", "--insecure", "false"]))
    settings = resolve(given, {})
    assert settings.front == {"exact_control_tokens": True, "media": MediaLimits()}
    assert settings.insecure is False


@pytest.mark.parametrize("name", GIVEN_ALL)
def test_the_command_line_wins_over_the_environment(name: str) -> None:
    other = {
        "device": "cuda",
        "dtype": "bfloat16",
        "profile": "auto",
        "port": "1",
        "max_prompt_tokens": "1",
        "insecure": "false",
        "metrics_port": "1",
        "log_format": "console",
        "confidence": "typesafe",
        "exact_control_tokens": "false",
        "max_questions": "1",
        "release_date": "2000-01-01",
        "max_images": "1",
        "max_aspect_ratio": "2",
    }
    settings = resolve({name: GIVEN_ALL[name]}, {variable(name): other.get(name, "other")})
    assert found(settings, name) == found(PARSED, name)


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
        ("exact_control_tokens", "yes", "must be true or false, not 'yes'"),
        ("release_date", "1 May", "must be a day as YYYY-MM-DD, not '1 May'"),
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


def test_a_value_the_front_refuses_names_the_flag() -> None:
    with pytest.raises(ValueError, match="^--max-nesting-depth must be a whole number, 4 to 200, not 1000$"):
        resolve({"max_nesting_depth": "1000"}, {})


def test_engine_arguments_are_what_follows_the_first_double_dash() -> None:
    assert split_arguments(["up", "--port", "1", "--", "--tp-size", "2", "--"]) == (
        ["up", "--port", "1"],
        ("--tp-size", "2", "--"),
    )
    assert split_arguments(["up"]) == (["up"], ())


def test_settings_survive_the_way_through_a_command_line() -> None:
    settings = resolve(GIVEN_ALL, {}, ("--tp-size", "2"))
    own, engine_args = split_arguments(as_arguments(settings, port="0"))
    parser = argparse.ArgumentParser()
    add_flags(parser)
    again = resolve(vars(parser.parse_args(own)), {}, engine_args)
    assert again == UpSettings(**{**vars(settings), "port": 0})


def test_help_gives_every_flag_its_variable_and_default() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = " ".join(parser.format_help().split())
    for name in GIVEN_ALL:
        assert flag(name) in text
        assert f"[{variable(name)}; default: " in text


def test_every_profile_can_be_named() -> None:
    assert {*profiles(), "none", "auto"} == set(get_args(ProfileChoice))

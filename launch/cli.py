"""The command `clef-serve`: reads the command line and hands over. Light to import, so that --help is instant."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from launch import checkpoint_source, keys, settings
from launch.check import preflight
from launch.plan import command as plan_command
from launch.verify import command as verify

UP_HELP = """\
Serve a Clef release over the SystemOne API.

Each setting is taken from the command line, else from its CLEF_* environment variable, else from its default.
Arguments after `--` go to the SGLang engine as they are, for example: clef-serve up -- --tp-size 2
"""
DEMO_HELP = """\
Start a server on a free port, ask it about an invoice and about a disk alert, print the answers as a table and then, as
the last line of standard output, as one JSON object, and stop it. Progress goes to standard error.
"""
Options = argparse.Namespace
AddFlags = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One subcommand.

    Attributes:
        run: takes the parsed flags, the environment and what stood after `--`; returns the exit status. Raises ValueError
            for what a user did wrong.
        engine_arguments: whether anything may stand after `--`.
    """

    summary: str
    help: str
    add_flags: Sequence[AddFlags]
    run: Callable[[Options, Mapping[str, str], tuple[str, ...]], int]
    engine_arguments: bool = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Ends with status 2 for a wrong command line or a checkpoint that cannot be served."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments, os.environ))


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit status of one invocation.

    Raises:
        SystemExit: the command line is wrong, or asked for help.
    """
    own, engine_args = split_arguments(arguments)
    parser = _parser()
    options = parser.parse_args(own)
    if options.command is None:
        parser.print_help()
        return 0
    command = COMMANDS[options.command]
    if engine_args and not command.engine_arguments:
        parser.error(f"{options.command} starts no engine, and takes nothing after --")
    from launch.up import UsageError, say

    try:
        return command.run(options, environ, engine_args)
    except UsageError as err:
        say(f"error: {err}")
        return 2
    except ValueError as err:
        parser.error(str(err))


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our own arguments, and the engine's: those after the first `--`."""
    own = list(arguments)
    if "--" not in own:
        return own, ()
    at = own.index("--")
    return own[:at], tuple(own[at + 1 :])


def _up(options: Options, environ: Mapping[str, str], engine_args: tuple[str, ...]) -> int:
    from launch.up import up

    return up(settings.resolve(vars(options), environ, engine_args))


def _demo(options: Options, environ: Mapping[str, str], engine_args: tuple[str, ...]) -> int:
    from launch.demo import demo

    return demo(settings.resolve(vars(options), environ, engine_args))


def _check(options: Options, environ: Mapping[str, str], engine_args: tuple[str, ...]) -> int:
    return preflight.check_command(settings.resolve(vars(options), environ, engine_args), as_json=options.json)


def _plan(options: Options, environ: Mapping[str, str], engine_args: tuple[str, ...]) -> int:
    del environ
    return plan_command.plan_command(options, engine_args)


def _profiles(options: Options, environ: Mapping[str, str], engine_args: tuple[str, ...]) -> int:
    del environ, engine_args
    return plan_command.profiles_command(options)


def _verify(options: Options, environ: Mapping[str, str], engine_args: tuple[str, ...]) -> int:
    del environ, engine_args
    from launch.up import say

    return verify.verify_command(options, say)


def _download(options: Options, environ: Mapping[str, str], engine_args: tuple[str, ...]) -> int:
    del environ, engine_args
    from launch.up import say

    return checkpoint_source.download_command(options, say)


def _keys(options: Options, environ: Mapping[str, str], engine_args: tuple[str, ...]) -> int:
    del environ, engine_args
    keys.keys_create(options)
    return 0


def _add_keys(parser: argparse.ArgumentParser) -> None:
    making = parser.add_subparsers(dest="keys_command", metavar="COMMAND", required=True)
    create = making.add_parser(
        "create", help="make an API key and its entry in a key file", description=keys.CREATE_HELP, allow_abbrev=False
    )
    keys.add_flags(create)


COMMANDS: Mapping[str, Command] = {
    "up": Command(
        summary="start a server", help=UP_HELP, add_flags=[settings.add_flags], run=_up, engine_arguments=True
    ),
    "demo": Command(
        summary="start a server, ask it two records, print the answers, stop it",
        help=DEMO_HELP,
        add_flags=[settings.add_flags],
        run=_demo,
        engine_arguments=True,
    ),
    "check": Command(
        summary="look at everything a server needs, before it is started",
        help=preflight.CHECK_HELP,
        add_flags=[settings.add_flags, preflight.add_check_arguments],
        run=_check,
        engine_arguments=True,
    ),
    "profiles": Command(
        summary="list the profiles for GPUs",
        help=plan_command.PROFILES_HELP,
        add_flags=[plan_command.add_profiles_arguments],
        run=_profiles,
    ),
    "plan": Command(
        summary="resolve a profile for a GPU and a model, and explain it",
        help=plan_command.PLAN_HELP,
        add_flags=[plan_command.add_plan_arguments],
        run=_plan,
        engine_arguments=True,
    ),
    "download": Command(
        summary="fetch a release from the Hugging Face hub",
        help=checkpoint_source.DOWNLOAD_HELP,
        add_flags=[checkpoint_source.add_download_arguments],
        run=_download,
    ),
    "verify": Command(
        summary="compare a running server with the reference implementation",
        help=verify.VERIFY_HELP,
        add_flags=[verify.add_verify_arguments],
        run=_verify,
    ),
    "keys": Command(summary="make an API key", help="Make an API key.", add_flags=[_add_keys], run=_keys),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clef-serve", description="Serve Cloudflare's Clef decision models on SGLang."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=command.summary,
            description=command.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            usage=f"clef-serve {name} [options] [-- SGLANG_ARGUMENT ...]" if command.engine_arguments else None,
        )
        for add in command.add_flags:
            add(subparser)
    return parser


if __name__ == "__main__":
    main()

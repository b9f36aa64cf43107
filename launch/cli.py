"""The command `clef-serve`: reads the command line and hands over. Light to import, so that --help is instant."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from launch import keys, settings

UP_HELP = """\
Serve a Clef release over the SystemOne API.

Each setting is taken from the command line, else from its CLEF_* environment variable, else from its default.
Arguments after `--` go to the SGLang engine as they are, for example: clef-serve up -- --tp-size 2
"""
DEMO_HELP = """\
Start a server on a free port, ask it about an invoice and about a disk alert, print the answers as a table and then, as
the last line of standard output, as one JSON object, and stop it. Progress goes to standard error.
"""


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
    if options.command == "keys":
        try:
            keys.keys_create(options)
        except ValueError as err:
            parser.error(str(err))
        return 0
    try:
        resolved = settings.resolve(vars(options), environ, engine_args)
    except ValueError as err:
        parser.error(str(err))
    from launch.up import UsageError, say, up

    try:
        if options.command == "up":
            return up(resolved)
        from launch.demo import demo

        return demo(resolved)
    except UsageError as err:
        say(f"error: {err}")
        return 2


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our own arguments, and the engine's: those after the first `--`."""
    own = list(arguments)
    if "--" not in own:
        return own, ()
    at = own.index("--")
    return own[:at], tuple(own[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clef-serve", description="Serve Cloudflare's Clef decision models on SGLang."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary, description in (
        ("up", "start a server", UP_HELP),
        ("demo", "start a server, ask it two records, print the answers, stop it", DEMO_HELP),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            usage=f"clef-serve {name} [options] [-- SGLANG_ARGUMENT ...]",
        )
        settings.add_flags(command)
    making = commands.add_parser("keys", help="make an API key").add_subparsers(
        dest="keys_command", metavar="COMMAND", required=True
    )
    create = making.add_parser(
        "create", help="make an API key and its entry in a key file", description=keys.CREATE_HELP, allow_abbrev=False
    )
    keys.add_flags(create)
    return parser


if __name__ == "__main__":
    main()

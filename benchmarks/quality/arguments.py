"""What `python -m benchmarks.quality` is told on its command line, and its help. Knows defaults, and does nothing."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from benchmarks.quality.asking import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT_S
from benchmarks.quality.baseline import TOLERANCES
from benchmarks.quality.intents import DEFAULT_INSTRUCTIONS, Oos
from benchmarks.quality.measuring import DEFAULT_BINS, DEFAULT_DRAWINGS, DEFAULT_TARGET_PRECISION

DESCRIPTION = """\
Ask a running SystemOne server labelled records and say how good its answers are: accuracy, macro-F1, Brier score, log loss,
calibration, the error of score questions, and which share can be decided without a person. Prints tables, and one JSON object
as the last line. Confidence is the top option's probability, whatever the server's own field of that name says.
"""
EPILOG = """\
--data by its suffix: .csv with the columns text and category (BANKING77) or intent (CLINC150), .json as CLINC150 publishes it,
anything else JSON lines in clef-finetune's format: state, questions, labels, and if wanted id and images.

Exit status:
  0  every record was answered, and no figure is behind the baseline
  1  a figure is worse than the baseline's by more than its tolerance
  2  nothing was measured: a wrong argument, data or baseline that cannot be used, or no server
  3  a record got no answer; the figures are of the others, and no baseline is written
"""
FROM_INTENTS = (".csv", ".json")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    data = parser.add_argument_group("what is asked")
    data.add_argument("--data", type=Path, required=True, metavar="FILE", help="the labelled records")
    data.add_argument(
        "--group-by",
        metavar="KEY",
        help="JSON lines: a key of every record, for figures by its values; id: by what stands before its first /",
    )
    data.add_argument(
        "--sample", type=_whole, metavar="N", help="ask N records drawn at random by --seed [default: all]"
    )
    data.add_argument("--instructions", metavar="TEXT", help=f"intents: what to ask [default: {DEFAULT_INSTRUCTIONS}]")
    data.add_argument(
        "--descriptions",
        type=Path,
        metavar="FILE",
        help="intents: JSON, an object of intent and description or a list of intents; they become the options [default: "
        "all intents of the data]",
    )
    data.add_argument(
        "--oos",
        choices=get_args(Oos),
        help="intents: whether oos, out of scope, is one more option, or its texts are left out [default: option]",
    )
    data.add_argument(
        "--split", action="append", metavar="NAME", help=".json: a split to ask, repeatable [default: test, oos_test]"
    )
    asking = parser.add_argument_group("who is asked")
    asking.add_argument("--url", required=True, help="the server, such as http://127.0.0.1:8000")
    asking.add_argument("--model", metavar="NAME", help="model to ask for [default: the first that the server lists]")
    asking.add_argument(
        "--api-key-env",
        metavar="VAR",
        help="environment variable that holds the key [default: SYSTEMONE_API_KEY, if it is set]",
    )
    asking.add_argument("--compare", metavar="URL2", help="ask this server too, and say how the two differ")
    asking.add_argument("--compare-model", metavar="NAME", help="the same for it")
    asking.add_argument(
        "--compare-api-key-env", metavar="VAR", help="the same for it; the first server's key is not sent to it"
    )
    asking.add_argument(
        "--concurrency", type=_whole, default=8, metavar="N", help="most requests at once [default: %(default)s]"
    )
    asking.add_argument(
        "--attempts",
        type=_whole,
        default=DEFAULT_ATTEMPTS,
        metavar="N",
        help="most times a request is sent, where the server refuses it for now [default: %(default)s]",
    )
    asking.add_argument(
        "--timeout-s",
        type=_positive,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help="for one attempt, in seconds [default: %(default)s]",
    )
    asking.add_argument(
        "--server-messages",
        action="store_true",
        help="print what the server says of records it does not answer; it may quote them",
    )
    measuring = parser.add_argument_group("what is measured")
    measuring.add_argument(
        "--target-precision",
        type=_share,
        default=DEFAULT_TARGET_PRECISION,
        metavar="P",
        help="of what is decided without a person, a share of 1 [default: %(default)s]",
    )
    measuring.add_argument(
        "--bins",
        type=_whole,
        default=DEFAULT_BINS,
        metavar="N",
        help="of the calibration errors [default: %(default)s]",
    )
    measuring.add_argument(
        "--drawings",
        type=_whole,
        default=DEFAULT_DRAWINGS,
        metavar="N",
        help="of the bootstrap, whose middle 95%% is the interval [default: %(default)s]",
    )
    measuring.add_argument("--seed", type=int, default=0, metavar="N", help="of every drawing [default: %(default)s]")
    out = parser.add_argument_group("what becomes of it")
    out.add_argument(
        "--report", type=Path, metavar="FILE", help="write an HTML page with plots; of records it shows ids"
    )
    out.add_argument("--baseline", type=Path, metavar="FILE", help="hold the figures to those of this file")
    out.add_argument(
        "--tolerance",
        type=_tolerance,
        action="append",
        default=[],
        metavar="METRIC=X",
        help="how much worse than the baseline passes, repeatable; inf: not held to it [default: "
        f"{', '.join(f'{metric}={value:g}' for metric, value in TOLERANCES.items())}]",
    )
    out.add_argument("--write-baseline", type=Path, metavar="FILE", help="write the figures as a baseline")
    arguments = parser.parse_args(argv)
    if arguments.data.suffix.lower() in FROM_INTENTS:
        _none_of(parser, arguments, "is for JSON lines", "group_by")
    else:
        _none_of(parser, arguments, "is for .csv and .json", "instructions", "descriptions", "oos", "split")
    if arguments.compare is None:
        _none_of(parser, arguments, "needs --compare", "compare_model", "compare_api_key_env")
    return arguments


def _none_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace, why: str, *names: str) -> None:
    for name in names:
        if getattr(arguments, name) is not None:
            parser.error(f"--{name.replace('_', '-')} {why}")


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number above 0")
    return int(text)


def _positive(text: str) -> float:
    if not (math.isfinite(value := _number(text)) and value > 0):
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


def _share(text: str) -> float:
    if not 0 < (value := _number(text)) <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value


def _tolerance(text: str) -> tuple[str, float]:
    metric, _, number = text.partition("=")
    if metric not in TOLERANCES or not _number(number) >= 0:
        raise argparse.ArgumentTypeError(f"must be METRIC=X, X at least 0, METRIC one of {', '.join(TOLERANCES)}")
    return metric, _number(number)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan

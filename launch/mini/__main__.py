"""`python -m launch.mini`: makes clef-mini's records, trains it and measures it."""

import os

# Two threads that wait for each other by spinning lose most of their time where other programs run too.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import sys
from pathlib import Path

from launch.mini import generate

STEPS = 6000
RELEASE = Path(__file__).parent / "release"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m launch.mini", description=__doc__)
    commands = parser.add_subparsers(required=True)

    train = commands.add_parser(
        "train", help="train from nothing, or on from where it was ended, and export the release"
    )
    train.add_argument("--output", type=Path, default=Path("clef-mini"), metavar="DIR", help="[default: ./clef-mini]")
    train.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"steps of the optimizer [default: {STEPS}]"
    )
    train.add_argument(
        "--processes",
        type=int,
        default=2,
        metavar="N",
        help="processes of one thread that share each batch [default: 2]",
    )
    train.set_defaults(run=_train)

    records = commands.add_parser("records", help="write labelled records, one JSON object a line")
    records.add_argument("--split", choices=generate.SPLITS, default="heldout", help="[default: heldout]")
    records.add_argument("--count", type=int, default=1000, metavar="N", help="[default: 1000]")
    records.add_argument("--out", type=Path, metavar="FILE", help="[default: standard output]")
    records.set_defaults(run=_records)

    evaluate = commands.add_parser("evaluate", help="measure a release on the held-out records; one JSON object")
    evaluate.add_argument(
        "release", type=Path, nargs="?", default=RELEASE, metavar="DIR", help="[default: the committed one]"
    )
    evaluate.add_argument("--count", type=int, default=1000, metavar="N", help="held-out records [default: 1000]")
    evaluate.set_defaults(run=_evaluate)

    options = parser.parse_args(arguments)
    return int(options.run(options))


def _train(options: argparse.Namespace) -> int:
    from launch.mini.finish import finish
    from launch.mini.train import Recipe, train

    trainer = train(options.output, Recipe(steps=options.steps), processes=options.processes, say=_say)
    finish(trainer, options.output, say=_say)
    return 0


def _records(options: argparse.Namespace) -> int:
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in generate.records(options.split, options.count))
    if options.out is None:
        sys.stdout.writelines(lines)
    else:
        with options.out.open("w", encoding="utf-8") as file:
            file.writelines(lines)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from launch.mini.batches import RecordEncoder
    from launch.mini.evaluate import decide, report
    from launch.mini.export import load_network
    from launch.mini.shape import CONTEXT_TOKENS

    network, tokenizer = load_network(options.release)
    encoder = RecordEncoder(tokenizer, CONTEXT_TOKENS)
    examples = [encoder.encode(record) for record in generate.records("heldout", options.count)]
    print(json.dumps(report(decide(network, examples)), indent=2))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

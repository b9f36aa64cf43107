"""The command line of the quality harness: data in, a running server asked, figures out."""

import argparse
import datetime
import importlib.metadata
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality import tables
from benchmarks.quality.arguments import FROM_INTENTS, parse_arguments
from benchmarks.quality.asking import Asked, Key, Server, ServerError, ask, find_server
from benchmarks.quality.baseline import TOLERANCES, BaselineError, behind, read_baseline, write_baseline
from benchmarks.quality.compare import Comparison, compare
from benchmarks.quality.intents import DEFAULT_INSTRUCTIONS, read_intents
from benchmarks.quality.measuring import Figure, Rules, Scope, differences, measure
from benchmarks.quality.records import DataError, Dataset, asked_sha256, read_records


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, measure and print; the exit status, as `--help` has it."""
    arguments = parse_arguments(argv)
    try:
        return _run(arguments)
    except (DataError, ServerError, BaselineError) as err:
        _say(f"error: {err}")
        return 2


def _run(arguments: argparse.Namespace) -> int:
    rules = Rules(
        target_precision=arguments.target_precision,
        bins=arguments.bins,
        drawings=arguments.drawings,
        seed=arguments.seed,
    )
    for written in (arguments.report, arguments.write_baseline):
        if written is not None and not written.parent.is_dir():  # noticed before all is asked
            raise DataError(f"{written} cannot be written: there is no such directory")
    dataset = _dataset(arguments)
    digest = asked_sha256(dataset.records)
    baseline = arguments.baseline and read_baseline(arguments.baseline, asked_sha256=digest, rules=rules)
    servers = _servers(arguments)
    asked = [_ask(dataset, server, arguments) for server in servers]
    complete = all(not side.failures for side in asked)
    scopes = measure(asked[0].decisions, rules) if asked[0].answered else {}
    compared = _compared(asked, rules) if len(asked) == 2 and scopes else None
    worse = None
    if scopes:
        print("\n".join([*tables.figures_table(scopes, rules), *tables.confusion_lines(scopes)]))
        if compared is not None:
            print("\n".join(["", *tables.comparison_lines(*compared)]))
        if baseline is not None:
            worse = behind(baseline, scopes, {**TOLERANCES, **dict(arguments.tolerance)})
            print("\n".join(["", *(worse or ["no figure is behind the baseline"])]))
    if arguments.write_baseline and complete:
        write_baseline(arguments.write_baseline, scopes, asked_sha256=digest, rules=rules)
    status = 3 if not complete else 1 if worse else 0
    about = _about(arguments, dataset, digest, servers, asked)
    if arguments.report:
        _write_report(arguments.report, about, scopes, rules, asked, worse, compared)
    print(json.dumps(_json(about, rules, scopes, compared, worse, status), ensure_ascii=False), flush=True)
    return status


def _dataset(arguments: argparse.Namespace) -> Dataset:
    if arguments.data.suffix.lower() in FROM_INTENTS:
        dataset = read_intents(
            arguments.data,
            instructions=arguments.instructions or DEFAULT_INSTRUCTIONS,
            descriptions=arguments.descriptions,
            oos=arguments.oos or "option",
            splits=arguments.split,
        )
    else:
        dataset = read_records(arguments.data, group_by=arguments.group_by)
    left_out = dict(dataset.left_out)
    records = dataset.records
    if arguments.sample is not None and arguments.sample < len(records):
        left_out["not drawn"] = len(records) - arguments.sample
        drawn = random.Random(arguments.seed).sample(range(len(records)), arguments.sample)
        records = [records[index] for index in sorted(drawn)]
    for reason, number in left_out.items():
        _say(f"{number} records are not asked: {reason}")
    return Dataset(records=records, sha256=dataset.sha256, left_out=left_out)


def _servers(arguments: argparse.Namespace) -> list[Server]:
    variable = arguments.api_key_env or "SYSTEMONE_API_KEY"
    key = Key.from_environment(variable, required=arguments.api_key_env is not None)
    servers = [find_server(arguments.url, model=arguments.model, key=key)]
    if arguments.compare is not None:
        variable = arguments.compare_api_key_env
        other = Key.from_environment(variable, required=True) if variable else None
        servers.append(find_server(arguments.compare, model=arguments.compare_model, key=other))
    return servers


def _ask(dataset: Dataset, server: Server, arguments: argparse.Namespace) -> Asked:
    total = len(dataset.records)
    _say(f"{server.url} ({server.model}): asking {total} records")
    asked = ask(
        dataset.records,
        server,
        concurrency=arguments.concurrency,
        attempts=arguments.attempts,
        timeout_s=arguments.timeout_s,
        progress=_every_tenth(total),
    )
    for failure in asked.failures:
        words = f": {failure.words}" if arguments.server_messages and failure.words else ""
        _say(f"{failure.record_name} got no answer: {failure.reason}{words}")
    return asked


def _every_tenth(total: int) -> Callable[[int, int], None]:
    def progress(done: int, failed: int) -> None:
        if done * 10 // total > (done - 1) * 10 // total:
            _say(f"{done} of {total} records, {failed} without answer")

    return progress


def _compared(asked: Sequence[Asked], rules: Rules) -> tuple[Comparison, Mapping[str, Mapping[str, Figure]]]:
    left, right = (side.decisions for side in asked)
    return compare(left, right), differences(left, right, rules)


def _about(
    arguments: argparse.Namespace, dataset: Dataset, digest: str, servers: Sequence[Server], asked: Sequence[Asked]
) -> dict[str, Any]:
    return {
        "data": arguments.data.name,
        "data_sha256": dataset.sha256,
        "asked_sha256": digest,
        "records": len(dataset.records),
        "records_left_out": dict(dataset.left_out),
        "servers": [
            {"url": server.url, "model": server.model, "answered": side.answered, "failures": side.by_reason}
            for server, side in zip(servers, asked, strict=True)
        ],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "clef_serving": importlib.metadata.version("clef-serving"),
        "scikit_learn": importlib.metadata.version("scikit-learn"),
        "numpy": importlib.metadata.version("numpy"),
    }


def _json(
    about: Mapping[str, Any],
    rules: Rules,
    scopes: Mapping[str, Scope],
    compared: tuple[Comparison, Mapping[str, Mapping[str, Figure]]] | None,
    worse: Sequence[str] | None,
    status: int,
) -> dict[str, Any]:
    return {
        "benchmark": "quality",
        **about,
        "target_precision": rules.target_precision,
        "bins": rules.bins,
        "drawings": rules.drawings,
        "seed": rules.seed,
        "scopes": {name: tables.scope_json(scope) for name, scope in scopes.items()},
        "comparison": compared and tables.comparison_json(*compared),
        "behind_baseline": worse,
        "exit_status": status,
    }


def _write_report(
    path: Path,
    about: Mapping[str, Any],
    scopes: Mapping[str, Scope],
    rules: Rules,
    asked: Sequence[Asked],
    worse: Sequence[str] | None,
    compared: tuple[Comparison, Mapping[str, Mapping[str, Figure]]] | None,
) -> None:
    from benchmarks.quality.html import report  # matplotlib takes a second to import

    servers = {
        f"server {number}": f"{one['url']}, {one['model']}" for number, one in enumerate(about["servers"], start=1)
    }
    words = {key: str(value) for key, value in about.items() if key != "servers"} | servers
    failures = [failure for side in asked for failure in side.failures]
    text = report(words, scopes, rules, failures=failures, behind=worse, compared=compared)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as err:
        raise DataError(f"--report {path} cannot be written: {err.strerror}") from err


def _say(message: str) -> None:
    print(f"... {message}", file=sys.stderr, flush=True)

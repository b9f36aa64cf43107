"""`clef-serve verify`: asks a running server and the release's own reference the same records, and tells how far apart
they are. For whoever brings a checkpoint of their own, quantized or fine-tuned, or an engine setting nobody has measured.
"""

import argparse
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.checkpoint_source import CheckpointSourceError, find_on_disk
from launch.settings import Dtype
from launch.verify.cases import Case, VerifyError, data_url, fixed_cases, read_records
from launch.verify.compare import MARGIN, Outcome, Verdict, compare, probabilities_of
from launch.verify.reference import Probabilities, Reference, Said, UnusableReferenceError, has_vision, reference_file

if TYPE_CHECKING:
    import httpx

Say = Callable[[str], None]

VERIFY_HELP = """\
Ask a running server and the reference implementation of its release the same records, and print how far apart the
probabilities are. The last line is one JSON object.

--model is the release to compare with; for a quantized checkpoint that is the one it was made from. Its reference,
joint_schema_model.py, is code that came with the release: it is run only with --trust-release-code, or give your own
with --reference. Each record is asked twice, so that an answer from the cache is compared as well.

Status 0: every record was answered within --tolerance. 1: not so. 2: there was nothing to compare.
"""
REQUEST_TIMEOUT_S = 600
TIMES_ASKED = 2


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `clef-serve verify` takes, for `verify_command`."""
    parser.add_argument("--url", required=True, metavar="URL", help="the server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--model",
        required=True,
        metavar="PATH|REPO",
        help="release to compare with: a directory, or one downloaded before",
    )
    parser.add_argument(
        "--revision", metavar="R", help="branch, tag or commit of a repository [default: its main branch]"
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="JSON lines with state and questions [default: a fixed set of ours]",
    )
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="file that holds the key to send, alone")
    parser.add_argument(
        "--reference", type=Path, metavar="FILE", help="reference implementation to run [default: the release's own]"
    )
    parser.add_argument(
        "--trust-release-code", action="store_true", help="run the code that came with the release, as yourself"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the reference runs [default: %(default)s]"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="type of the reference's weights and arithmetic, 4 or 2 bytes a parameter [default: float32 on the CPU]",
    )
    parser.add_argument("--text-only", action="store_true", help="leave out the two records with images")
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        default=1e-2,
        metavar="DP",
        help="largest |dp| that passes [default: %(default)s]",
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")


def verify_command(options: argparse.Namespace, say: Say) -> int:
    """Compare; the exit status, as VERIFY_HELP has it."""
    try:
        release = find_on_disk(options.model, revision=options.revision).path
        source = reference_file(release, named=options.reference, trust_release_code=options.trust_release_code)
        with_images = not options.text_only and has_vision(release)
        cases = list(read_records(options.records) if options.records else fixed_cases(with_images=with_images))
        with _client(options.url, _key(options.api_key_file)) as client:
            model = _served_model(client)
            say(f"loading the reference {source} on the {options.device} ...")
            dtype: Dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
            reference = Reference(release, source, device=options.device, dtype=dtype)
            outcomes = []
            for number, case in enumerate(cases, start=1):
                say(f"record {number} of {len(cases)}: {case.name}")
                said = reference.ask(case.record, case.images)
                outcomes.append(_ask(client, model, case, said))
    except (VerifyError, UnusableReferenceError, CheckpointSourceError) as err:
        say(f"error: {err}")
        return 2
    verdict = Verdict(outcomes=outcomes, tolerance=options.tolerance)
    if not options.json:
        print(table(verdict))
    print(json.dumps(summary(verdict, reference_dtype=dtype), ensure_ascii=False), flush=True)
    return 0 if verdict.passed else 1


def table(verdict: Verdict) -> str:
    """A line for each record, then what they say together."""
    rows = [("record", "prompt tokens", "cached", "max |dp|", "same top", "question")]
    for outcome in verdict.outcomes:
        if outcome.refused is not None:
            rows.append((outcome.name, "", "", "", "", outcome.refused))
            continue
        served, reference = outcome.tokens
        counted = str(reference) if served in (None, reference) else f"{served}, not {reference}"
        cached = "" if outcome.cached is None else str(outcome.cached)
        top = "yes" if outcome.same_top else "NO" if outcome.disagreements else "close"
        rows.append((outcome.name, counted, cached, f"{outcome.max_dp:.2e}", top, outcome.question))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    passed = "within" if verdict.passed else "NOT within"
    together = [
        f"max |dp| {verdict.max_dp:.2e}, {passed} the tolerance {verdict.tolerance:g}; "
        f"{f'as close as {verdict.holds} asks' if verdict.holds else 'closer tolerances than that do not hold'}",
        f"{len(verdict.disagreements)} questions have another top option although the reference's is ahead by more than "
        f"{MARGIN}{': ' if verdict.disagreements else ''}{', '.join(verdict.disagreements)}",
    ]
    if verdict.refused:
        together.append(f"{len(verdict.refused)} records could not be compared: {', '.join(verdict.refused)}")
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", *together, ""])


def summary(verdict: Verdict, *, reference_dtype: str) -> dict[str, Any]:
    """The JSON object."""
    compared = [outcome for outcome in verdict.outcomes if outcome.refused is None]
    return {
        "passed": verdict.passed,
        "tolerance": verdict.tolerance,
        "max_abs_dp": verdict.max_dp,
        "tolerance_that_holds": verdict.holds,
        "disagreements": verdict.disagreements,
        "records": len(verdict.outcomes),
        "not_compared": {outcome.name: outcome.refused for outcome in verdict.outcomes if outcome.refused is not None},
        "other_prompt_tokens": [one.name for one in compared if one.tokens[0] not in (None, one.tokens[1])],
        "reference_dtype": reference_dtype,
        "max_abs_dp_by_record": {outcome.name: outcome.max_dp for outcome in compared},
    }


def _ask(client: "httpx.Client", model: str, case: Case, said: Said) -> Outcome:
    import httpx

    # Of its own, so that the first answer is computed and the second comes from the cache.
    body = {"model": model, **case.record, "cache_salt": f"verify {case.name} {secrets.token_hex(8)}"[:256]}
    if case.images:
        body["images"] = [data_url(image) for image in case.images]
    served: list[Probabilities] = []
    usage: dict[str, Any] = {}
    for _ in range(TIMES_ASKED):
        try:
            response = client.post("/v1/systemone", json=body)
        except httpx.HTTPError as err:
            raise VerifyError(f"the server did not answer {case.name}: {type(err).__name__} {err}") from err
        if response.status_code != 200:
            return Outcome(name=case.name, refused=f"{response.status_code}: {_detail(response)}")
        try:
            answered = response.json()
            served.append(probabilities_of(answered["answers"]))
            usage = answered.get("usage") or {}
        except (KeyError, ValueError, AttributeError) as err:
            return Outcome(name=case.name, refused=f"the answer cannot be read: {err}")
    return compare(
        case.name,
        said.probabilities,
        served,
        tokens=(usage.get("input_tokens"), said.tokens),
        cached=usage.get("x_cached_tokens"),
    )


def _client(url: str, headers: dict[str, str]) -> "httpx.Client":
    import httpx

    try:
        return httpx.Client(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S)
    except httpx.InvalidURL as err:
        raise VerifyError(f"--url {url} is not an address: {err}") from err


def _served_model(client: "httpx.Client") -> str:
    """The name to ask for."""
    import httpx

    try:
        response = client.get("/v1/models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except httpx.HTTPStatusError as err:
        raise VerifyError(
            f"{client.base_url}v1/models answers {err.response.status_code}: {_detail(response)}"
        ) from err
    except httpx.HTTPError as err:
        raise VerifyError(f"no server answers at {client.base_url}: {err}; start one with clef-serve up") from err
    except (LookupError, TypeError, ValueError) as err:
        raise VerifyError(f"what answers at {client.base_url} does not list its models: is it clef-serve?") from err


def _key(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as err:
        # Not the error's own text: it may hold what stands in the file.
        raise VerifyError(f"--api-key-file {path} cannot be read as one key") from err
    if not key or any(character.isspace() for character in key):
        raise VerifyError(f"--api-key-file {path} must hold one key and nothing else")
    return {"authorization": f"Bearer {key}"}


def _detail(response: "httpx.Response") -> str:
    """What an error says, on one line and not without end."""
    try:
        detail = response.json()["detail"]
        text = detail["message"] if isinstance(detail, dict) else "; ".join(fault["msg"] for fault in detail)
    except (ValueError, LookupError, TypeError):
        text = response.text
    return " ".join(str(text).split())[:200]


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, not {text}")
    return value

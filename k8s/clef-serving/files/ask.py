"""What `helm test` runs: the Service answers, names its model, and asks for keys where it should. Standard library only."""

import json
import os
import urllib.error
import urllib.request

URL = os.environ["CLEF_URL"]
KEY = os.environ.get("CLEF_TEST_KEY", "").strip()
WANTS_KEYS = os.environ["CLEF_WANTS_KEYS"] == "true"
QUESTION = {
    "state": "Disk /var on db-03 is 97 percent full and grows by 4 GB per hour.",
    "questions": {"page": {"type": "noul", "instructions": "Should someone be woken up for this?"}},
}


def ask(path: str, body: object = None, key: str = "") -> tuple[int, str]:
    """Status and text of one answer."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=60) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as err:
        return err.code, err.read().decode()


def expect(what: str, got: tuple[int, str], status: int) -> str:
    """The text, if the status is the expected one."""
    if got[0] != status:
        raise SystemExit(f"FAILED {what}: expected {status}, got {got[0]}: {got[1][:500]}")
    print(f"ok     {what}: {status}", flush=True)
    return got[1]


model = json.loads(expect("GET /v1/models", ask("/v1/models"), 200))["data"][0]["id"]
if WANTS_KEYS:
    expect("a question without a key", ask("/v1/systemone", {"model": model, **QUESTION}), 401)
if KEY or not WANTS_KEYS:
    text = expect("a question", ask("/v1/systemone", {"model": model, **QUESTION}, KEY), 200)
    probability = json.loads(text)["answers"]["page"]["noul"]
    if not 0 <= probability <= 1:
        raise SystemExit(f"FAILED the answer: {probability} is no probability")
    print(f"ok     the answer: {probability}")

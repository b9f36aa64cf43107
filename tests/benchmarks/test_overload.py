"""The arithmetic of the overload benchmark. Starts no server."""

import pytest

from benchmarks.overload import Reply, percentile, reply_of, summary


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([7], 0.99, 7), ([4, 1, 3, 2], 0.5, 2), (list(range(1, 101)), 0.99, 99), ([1, 2], 1, 2)],
)
def test_percentile(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


def refusal(message: str, seconds: float, error_type: str = "request_timeout") -> Reply:
    return reply_of(503, {"detail": {"error_type": error_type, "message": message}}, seconds)


def test_replies_are_counted_by_reason_and_the_late_ones_among_those_let_in() -> None:
    replies = [
        *(reply_of(200, {}, seconds) for seconds in (0.5, 1.5, 2.5)),
        refusal("about 1.9 s of other work comes first, so that the deadline would be missed", 0.01),
        refusal("about 12 s of other work comes first, so that the deadline would be missed", 0.02),
        refusal("the queue is full: max_waiting_requests is 1024", 0.03, "overloaded"),
        refusal("the answer was not there before the deadline", 2.0),
        Reply(status=0, reason="unanswered", seconds=3),
    ]
    assert summary(replies, offered_seconds=4, deadline_s=2) == {
        "requests": 8,
        "offered_rps": 2,
        "answered_rps": 0.75,
        "goodput_rps": 0.5,
        "refused": 4,
        "refusal_p50_ms": 20,
        "refusal_p99_ms": 2000,
        "answer_p50_ms": 1500,
        "answer_p99_ms": 2500,
        "let_in": 5,
        "let_in_within_deadline": 0.4,
        "unanswered_at_the_end": 1,
        "by_reason": {
            "answered": 3,
            "request_timeout: about N s of other work comes first, so that the deadline would be missed": 2,
            "overloaded: the queue is full: max_waiting_requests is N": 1,
            "request_timeout: the answer was not there before the deadline": 1,
            "unanswered": 1,
        },
    }


def test_nothing_refused_and_nothing_answered_have_no_figures() -> None:
    none = summary([], offered_seconds=1, deadline_s=2)
    assert (none["refusal_p99_ms"], none["answer_p99_ms"], none["let_in_within_deadline"]) == (None, None, None)

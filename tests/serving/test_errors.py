"""Every error of ours and of the engine has its own line in the one table, and its body has the API's shape."""

import json

import pytest

from serving import errors
from serving.engine import EngineDeadError, EngineError
from serving.errors import (
    HTTP_ERROR_TYPES,
    INTERNAL,
    OUTCOMES,
    AuthenticationError,
    Fault,
    InvalidRequestError,
    NotServingError,
    OverloadedError,
    RateLimitedError,
    RequestError,
    RequestTimeoutError,
    RetryLaterError,
    error_response,
    json_bytes,
    outcome_of,
    plain_error,
)


def descendants(cls: type[Exception]) -> set[type[Exception]]:
    return {cls}.union(
        *(descendants(child) for child in cls.__subclasses__() if child.__module__.startswith("serving"))
    )


# What is only a base of others: never raised, so not in the table.
BASES = {RequestError, RetryLaterError}
RAISED = (descendants(EngineError) | descendants(RequestError)) - BASES


def made(cls: type[Exception]) -> Exception:
    if cls is InvalidRequestError:
        return InvalidRequestError([])
    return cls("why", retry_after_ms=1500) if issubclass(cls, RetryLaterError) else cls("why")  # type: ignore[call-arg]


@pytest.mark.parametrize("cls", sorted(RAISED, key=lambda cls: cls.__name__))
def test_every_error_is_in_the_table(cls: type[Exception]) -> None:
    assert cls in OUTCOMES
    assert outcome_of(made(cls)) is OUTCOMES[cls]


def test_nothing_else_is_in_the_table() -> None:
    assert set(OUTCOMES) == RAISED


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    above = ["RequestError"]  # the last class drawn at each depth
    for line in (RequestError.__doc__ or "").splitlines():
        branch, found, text = line.partition("── ")
        if found:
            depth = len(branch.strip()) // 4 + 1
            name = text.split()[0]
            drawn[name] = above[depth - 1]
            above[depth:] = [name]
    assert drawn == {cls.__name__: cls.__bases__[0].__name__ for cls in descendants(RequestError) - {RequestError}}


def test_a_later_error_of_the_engine_is_an_engine_error_until_it_is_listed() -> None:
    class LaterError(EngineError):
        pass

    assert outcome_of(LaterError()) is OUTCOMES[EngineError]


def test_anything_else_is_internal_and_hides_its_message() -> None:
    response = error_response(KeyError("secret"))
    assert outcome_of(KeyError("secret")) is INTERNAL
    assert response.status_code == 500
    assert b"secret" not in response.body


def test_a_client_fault_is_never_a_5xx_and_a_server_fault_is_never_a_4xx() -> None:
    ours = {NotServingError, OverloadedError, RequestTimeoutError}
    for cls, outcome in OUTCOMES.items():
        theirs = issubclass(cls, RequestError) and cls not in ours
        assert (outcome.status < 500) == theirs, cls


def test_who_may_try_again_is_told_when() -> None:
    for cls, outcome in OUTCOMES.items():
        headers = error_response(made(cls)).headers
        told = "retry-after" in headers and "retry-after-ms" in headers
        assert told == (outcome.status in (429, 503)), cls


@pytest.mark.parametrize(
    ("cls", "status", "error_type"),
    [
        (RateLimitedError, 429, "rate_limit_error"),
        (OverloadedError, 503, "overloaded"),
        (RequestTimeoutError, 503, "request_timeout"),
    ],
)
def test_an_error_that_knows_when_says_so(cls: type[RetryLaterError], status: int, error_type: str) -> None:
    response = error_response(cls("not now", retry_after_ms=1500))
    assert response.status_code == status
    assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("2", "1500")
    assert json.loads(response.body) == {"detail": {"error_type": error_type, "message": "not now"}}


def test_a_refused_key_is_told_how_to_send_one() -> None:
    response = error_response(AuthenticationError("no key"))
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert json.loads(response.body) == {"detail": {"error_type": "authentication_error", "message": "no key"}}
    assert "www-authenticate" not in error_response(NotServingError("no")).headers


def test_invalid_request() -> None:
    fault = Fault(loc=["body", "state"], msg="state is required", type="missing")
    response = error_response(InvalidRequestError([fault]))
    assert response.status_code == 422
    assert json.loads(response.body) == {
        "detail": [{"loc": ["body", "state"], "msg": "state is required", "type": "missing"}]
    }


def test_dead_engine() -> None:
    response = error_response(EngineDeadError("pid 4711 exited"))
    assert response.status_code == 503
    assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("5", "5000")
    assert json.loads(response.body) == {
        "detail": {"error_type": "engine_dead", "message": "the engine behind this server has stopped"}
    }


@pytest.mark.parametrize(("milliseconds", "seconds"), [(1, "1"), (1000, "1"), (1001, "2"), (5000, "5")])
def test_retry_after_is_rounded_up_to_whole_seconds(milliseconds: int, seconds: str) -> None:
    response = plain_error(503, "not_serving", "why", retry_after_ms=milliseconds)
    assert response.headers["retry-after"] == seconds
    assert response.headers["retry-after-ms"] == str(milliseconds)


def test_json_bytes_keeps_digits_and_refuses_what_is_not_json() -> None:
    assert json_bytes({"é": 10**30}) == '{"é":1000000000000000000000000000000}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes(float("nan"))


def test_error_types_are_names() -> None:
    names = [outcome.error_type for outcome in (*OUTCOMES.values(), errors.INTERNAL)] + list(HTTP_ERROR_TYPES.values())
    assert all(name.replace("_", "").isalpha() and name.islower() for name in names)

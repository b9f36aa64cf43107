"""The published request and response of SystemOne (OpenAPI 0.2.0) as types, with their limits and clear refusals.

Knows nothing of HTTP, tokens or engines. A question's keys are closed, since a misspelt one would answer a different
question; unknown keys beside `state` and `questions` are ignored, as the published schema allows, except those that
mean something elsewhere (`REFUSED_FIELDS`): ignoring them silently would change what the answer means.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from model_plugin.schema_layout import QUESTION_TYPES
from serving.errors import Fault, InvalidRequestError
from serving.faults import faults_of
from serving.strict_json import json_kind, shorten

MAX_CHOICE_OPTIONS = 255
MAX_SCORE_LEVELS = 10
MAX_CACHE_SALT = 256  # characters
# Each of them carries the whole state to the engine: without a bound a body of 32 MB could stand for 10^11 tokens.
MAX_ISOLATED_QUESTIONS = 128

# What each of these would change, were it not refused.
REFUSED_FIELDS: Mapping[str, str] = {
    "assets": "media are not supported by this server yet",
    "images": "media are not supported by this server yet",
    "videos": "media are not supported by this server yet",
    "media_kwargs": "media are not supported by this server yet",
    "over_limit": "a prompt over the limit is always refused by this server",
    "temperature": "it belongs to /v1/decisions and has no meaning here: an answer is computed, not sampled",
    "prompt_format_version": "it belongs to /v1/decisions; this model has one prompt format",
    "return_prompt_token_ids": "it belongs to /v1/decisions; this API does not return token ids",
}


def _text(value: Any) -> Any:
    # One check instead of a union, which would report one fault per member.
    if isinstance(value, str | dict | list):
        return value
    raise PydanticCustomError(
        "content_type", "must be a string, an object or an array, not {kind}", {"kind": json_kind(value)}
    )


def _text_or_null(value: Any) -> Any:
    if value is None or isinstance(value, str | dict | list):
        return value
    raise PydanticCustomError(
        "content_type", "must be a string, an object, an array or null, not {kind}", {"kind": json_kind(value)}
    )


# Text or JSON that is rendered into the prompt.
Content = Annotated[Any, PlainValidator(_text, json_schema_input_type=str | dict[str, Any] | list[Any])]
OptionalContent = Annotated[
    Any, PlainValidator(_text_or_null, json_schema_input_type=str | dict[str, Any] | list[Any] | None)
]


def _is_blank(content: Any) -> bool:
    return not (content.strip() if isinstance(content, str) else content)


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NoulCriteria(_Closed):
    """What counts as yes and as no. A side that is absent keeps the model's own text; a side that is null has none."""

    true: OptionalContent = None
    false: OptionalContent = None

    def as_sent(self) -> dict[str, Any]:
        """The sides that the request named."""
        return {side: getattr(self, side) for side in ("true", "false") if side in self.model_fields_set}


class NoulQuestion(_Closed):
    """A yes/no question."""

    type: Literal["noul"]
    instructions: OptionalContent = None
    criteria: NoulCriteria | None = None

    @model_validator(mode="after")
    def _has_something_to_decide_on(self) -> Self:
        sides = self.criteria.as_sent().values() if self.criteria else ()
        if all(_is_blank(text) for text in (self.instructions, *sides)):
            raise PydanticCustomError(
                "nothing_to_decide", "needs instructions, or a description of true or of false, to decide on"
            )
        return self


class ChoiceQuestion(_Closed):
    """One of 1 to 255 options, whose names are kept byte for byte. Without instructions the question's id is asked."""

    type: Literal["choice"]
    instructions: OptionalContent = None
    criteria: dict[str, OptionalContent] = Field(min_length=1, max_length=MAX_CHOICE_OPTIONS)


class ScoreQuestion(_Closed):
    """One of 1 to 10 ordered levels. Without instructions the question's id is asked."""

    type: Literal["score"]
    instructions: OptionalContent = None
    criteria: list[Content] = Field(min_length=1, max_length=MAX_SCORE_LEVELS)


def _known_type(value: Any) -> Any:
    """Refuse what is no question of a known type before the union is entered, whose own errors name its insides."""
    if isinstance(value, NoulQuestion | ChoiceQuestion | ScoreQuestion):
        return value
    allowed = ", ".join(QUESTION_TYPES)
    if not isinstance(value, dict):
        raise PydanticCustomError("question_type", "must be an object, not {kind}", {"kind": json_kind(value)})
    if "type" not in value:
        raise PydanticCustomError("question_tag_missing", "is required: one of {allowed}", {"allowed": allowed})
    tag = value["type"]
    if not isinstance(tag, str):
        raise PydanticCustomError(
            "question_tag", "must be one of {allowed}, not {kind}", {"allowed": allowed, "kind": json_kind(tag)}
        )
    if tag == "box":
        raise PydanticCustomError(
            "question_tag", "box is not supported by this model; it answers {allowed}", {"allowed": allowed}
        )
    if tag not in QUESTION_TYPES:
        raise PydanticCustomError(
            "question_tag", "must be one of {allowed}, not '{tag}'", {"allowed": allowed, "tag": shorten(tag)}
        )
    return value


Question = Annotated[
    Annotated[NoulQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")], BeforeValidator(_known_type)
]
QuestionId = Annotated[str, StringConstraints(min_length=1)]


def _refused(value: Any, info: ValidationInfo) -> Any:
    name = info.field_name or ""
    # The reference reads an empty list of media as none; the published schema wants at least one asset.
    if value is None or (name in ("images", "videos", "media_kwargs") and value in ([], {})):
        return None
    raise PydanticCustomError("field_not_supported", "is refused: {why}", {"why": REFUSED_FIELDS[name]})


_Refused = Annotated[SkipJsonSchema[Any], AfterValidator(_refused)]


def _few_enough(isolated: bool, info: ValidationInfo) -> bool:
    asked = len(info.data.get("questions", ()))  # absent if they are invalid themselves
    if isolated and asked > MAX_ISOLATED_QUESTIONS:
        raise PydanticCustomError(
            "too_many_isolated",
            "takes at most {most} questions, not {asked}",
            {"most": MAX_ISOLATED_QUESTIONS, "asked": asked},
        )
    return isolated


class SystemOneRequest(BaseModel):
    """A state and the questions about it. Without `model` the served model answers.

    Requests share the computation of equal states only under equal `cache_salt`s, so that how long an answer takes tells
    nothing about what others asked.

    The model reads each question's id, its number and the other questions, so all of them move its probabilities. With
    `x_question_ids` "neutral" it reads `q1`, `q2`, ... in the place of the ids; a question without instructions still asks
    the id it was sent with. With `x_isolated` each of at most 128 questions is asked in a prompt of its own, as if it had
    been sent alone; the prompt limit is then one for each, and `usage` counts all prompts. Answers go by the ids sent.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    model: str | None = None
    state: Content
    questions: dict[QuestionId, Question] = Field(min_length=1)
    cache_salt: Annotated[str, StringConstraints(max_length=MAX_CACHE_SALT)] | None = None
    x_question_ids: Literal["sent", "neutral"] = "sent"
    x_isolated: Annotated[bool, AfterValidator(_few_enough)] = False
    assets: _Refused = None
    images: _Refused = None
    videos: _Refused = None
    media_kwargs: _Refused = None
    over_limit: _Refused = None
    temperature: _Refused = None
    prompt_format_version: _Refused = None
    return_prompt_token_ids: _Refused = None


class NoulAnswer(BaseModel):
    """The probability of yes."""

    type: Literal["noul"] = "noul"
    noul: float


class ChoiceAnswer(BaseModel):
    """The most probable option, the first in request order on a tie; `probabilities` in request order."""

    type: Literal["choice"] = "choice"
    choice: str
    confidence: float
    probabilities: dict[str, float]


class ScoreAnswer(BaseModel):
    """The expectation of the level index; `legend` holds the levels as sent."""

    type: Literal["score"] = "score"
    score: float
    confidence: float
    legend: dict[str, str | dict[str, Any] | list[Any]]
    probabilities: dict[str, float]


class Usage(BaseModel):
    """Tokens of the prompt, or of all. Nothing is generated, so `output_tokens` is 0. Cached tokens were not computed again."""

    input_tokens: int
    output_tokens: int = 0
    x_cached_tokens: int = 0


class SystemOneResponse(BaseModel):
    """One answer per question id, in request order."""

    model: str
    answers: dict[str, Annotated[NoulAnswer | ChoiceAnswer | ScoreAnswer, Field(discriminator="type")]]
    usage: Usage


class ValidationFault(BaseModel):
    """One thing wrong with a request: where, in words, and for a program."""

    loc: list[str | int]
    msg: str
    type: str


class ValidationFaults(BaseModel):
    """A 422 body."""

    detail: list[ValidationFault]


class ErrorDetail(BaseModel):
    """What went wrong, for a program and for a person."""

    error_type: str
    message: str


class ErrorBody(BaseModel):
    """The body of every error that is not a 422."""

    detail: ErrorDetail


def parse_request(value: Any) -> SystemOneRequest:
    """The request that a parsed JSON body stands for.

    Raises:
        InvalidRequestError: one fault for each thing wrong, naming the question, the field and the limit.
    """
    if not isinstance(value, dict):
        message = f"the body must be a JSON object, not {json_kind(value)}"
        raise InvalidRequestError([Fault(loc=["body"], msg=message, type="dict_type")])
    try:
        return SystemOneRequest.model_validate(value)
    except ValidationError as err:
        raise InvalidRequestError(faults_of(err)) from err

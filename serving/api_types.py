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
    Discriminator,
    Field,
    PlainValidator,
    StringConstraints,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from model_plugin.schema_layout import QUESTION_TYPES
from serving.errors import Fault, InvalidRequestError
from serving.faults import DATA_FORM, FRAMES_FORM, TEXT_FORM, URL_FORM, faults_of
from serving.settings import DEFAULT_MAX_OPTIONS, DEFAULT_MAX_QUESTIONS, OverLimit
from serving.strict_json import json_kind, shorten

MAX_CHOICE_OPTIONS = 255
MAX_SCORE_LEVELS = 10
MAX_CACHE_SALT = 256  # characters
# Each of them carries the whole state to the engine: without a bound a body of 32 MB could stand for 10^11 tokens.
MAX_ISOLATED_QUESTIONS = 128

MAX_ASSET_NAME = 512  # characters

# What each of these would change, were it not refused.
REFUSED_FIELDS: Mapping[str, str] = {
    "files": "media are sent in images, videos or assets",
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


class ImageUrl(_Closed):
    """SGLang's form of an image. Another `detail` than auto would ask for a size that the model was not trained on."""

    url: str
    detail: Literal["auto"] | None = None


class ImageData(_Closed):
    """Cloudflare's form of an image. The bytes decide what it is; a content type that is no image's is refused."""

    base64: str
    content_type: Annotated[str, StringConstraints(pattern=r"^image/")] | None = None


def _source_or_object(value: Any) -> Any:
    """Refuse what is neither before the union is entered, whose own errors name its insides."""
    if isinstance(value, str | dict | BaseModel):
        return value
    raise PydanticCustomError("media_type", "must be a string or an object, not {kind}", {"kind": json_kind(value)})


def _form(value: Any) -> str:
    """Which member of a union of media forms a value is meant to be; `serving.faults` takes it out of error paths."""
    if isinstance(value, str):
        return TEXT_FORM
    keys = value if isinstance(value, dict) else type(value).model_fields
    return next((form for key, form in (("frames", FRAMES_FORM), ("base64", DATA_FORM)) if key in keys), URL_FORM)


# A data URL, base64 text, or an http(s) URL where its host is allowed.
Image = Annotated[
    Annotated[str, Tag(TEXT_FORM)] | Annotated[ImageUrl, Tag(URL_FORM)] | Annotated[ImageData, Tag(DATA_FORM)],
    Discriminator(_form),
    BeforeValidator(_source_or_object),
]
FramesPerSecond = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]


class VideoFrames(_Closed):
    """A video as its frames, each an image, shown at `fps` frames a second."""

    frames: list[Image] = Field(min_length=1)
    fps: FramesPerSecond


class VideoUrl(_Closed):
    """A video file; its container says how many frames a second it has."""

    url: str


class VideoData(_Closed):
    """The same in Cloudflare's form of an image."""

    base64: str
    content_type: Annotated[str, StringConstraints(pattern=r"^video/")] | None = None


Video = Annotated[
    Annotated[str, Tag(TEXT_FORM)]
    | Annotated[VideoUrl, Tag(URL_FORM)]
    | Annotated[VideoData, Tag(DATA_FORM)]
    | Annotated[VideoFrames, Tag(FRAMES_FORM)],
    Discriminator(_form),
    BeforeValidator(_source_or_object),
]


class MediaKwargs(_Closed):
    """How videos are sampled: the reference's own names. Without any, as the release's processor samples."""

    fps: FramesPerSecond | None = None
    num_frames: int | None = Field(default=None, ge=1)
    do_sample_frames: bool | None = None

    def as_sent(self) -> dict[str, Any]:
        """The arguments that the request named."""
        return self.model_dump(exclude_none=True)


class Asset(_Closed):
    """An image that strings of the request refer to by the name it stands under.

    `part` names a part of a multipart body, and `data_base64` is then ignored. The bytes decide what format it is.
    """

    type: Literal["image"] | None = None
    format: Literal["png", "jpg", "jpeg", "webp"] | None = None
    data_base64: str | None = None
    part: str | None = None

    @model_validator(mode="after")
    def _has_data(self) -> Self:
        if self.part is None and not self.data_base64:
            raise PydanticCustomError("asset_empty", "needs data_base64, or part in a multipart request")
        return self


AssetName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ASSET_NAME)]


def _refused(value: Any, info: ValidationInfo) -> Any:
    if value is None or value == []:
        return None
    raise PydanticCustomError(
        "field_not_supported", "is refused: {why}", {"why": REFUSED_FIELDS[info.field_name or ""]}
    )


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

    Media are read before the state: `images`, then `assets` in the order in which the request first refers to them, then
    `videos`. Where a string refers to an asset, the model reads `<image N>`, N counted from 1.

    `over_limit` "truncate" cuts the state's end where the prompt would be too long.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    model: str | None = None
    state: Content
    questions: dict[QuestionId, Question] = Field(min_length=1)
    cache_salt: Annotated[str, StringConstraints(max_length=MAX_CACHE_SALT)] | None = None
    x_question_ids: Literal["sent", "neutral"] = "sent"
    x_isolated: Annotated[bool, AfterValidator(_few_enough)] = False
    assets: dict[AssetName, Asset] | None = Field(default=None, min_length=1)
    images: list[Image] | None = None
    videos: list[Video] | None = None
    media_kwargs: MediaKwargs | None = None
    over_limit: OverLimit | None = None
    files: _Refused = None
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
    """Tokens of the prompt, or of all. Nothing is generated, so `output_tokens` is 0.

    Cached tokens were not computed again; truncated ones were cut from the state's end and never read. Of a state with more
    than 16 characters for each token of the limit, at least so many: its rest is not counted.
    """

    input_tokens: int
    output_tokens: int = 0
    x_cached_tokens: int = 0
    x_truncated_tokens: int = 0


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


def parse_request(
    value: Any, *, max_questions: int = DEFAULT_MAX_QUESTIONS, max_options: int = DEFAULT_MAX_OPTIONS
) -> SystemOneRequest:
    """The request that a parsed JSON body stands for.

    Args:
        value: what the body holds.
        max_questions: most questions.
        max_options: most options and levels of all questions.

    Raises:
        InvalidRequestError: one fault for each thing wrong, naming the question, the field and the limit.
    """
    if not isinstance(value, dict):
        message = f"the body must be a JSON object, not {json_kind(value)}"
        raise InvalidRequestError([Fault(loc=["body"], msg=message, type="dict_type")])
    # Counted first: a million questions would be checked one by one, and each be found wrong.
    questions = value.get("questions")
    if isinstance(questions, dict):
        _bound(len(questions), "questions", "max_questions", max_questions)
        criteria = (question.get("criteria") for question in questions.values() if isinstance(question, dict))
        options = sum(len(listed) for listed in criteria if isinstance(listed, dict | list))
        _bound(options, "options", "max_options", max_options)
    try:
        return SystemOneRequest.model_validate(value)
    except ValidationError as err:
        raise InvalidRequestError(faults_of(err)) from err


def _bound(found: int, what: str, limit_name: str, limit: int) -> None:
    if found > limit:
        message = f"questions has {found} {what}; the limit {limit_name} is {limit}"
        raise InvalidRequestError([Fault(loc=["body", "questions"], msg=message, type="too_long")])

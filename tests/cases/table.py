"""Requests that real clients and real servers stumbled on, with the outcome this server owes each of them.

Each id is that of a case of the project's collection; what follows a slash is a neighbour of the same kind. The table
knows no server: it can be run against the app in process or against any URL. An expected 200 means the answers that
`tests.cases.checks` derives from the request; anything else states its `detail`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATE = "Customer says the parcel arrived broken and wants money back."
REFUND = {"type": "noul", "instructions": "Does the customer want a refund?"}
JSON_TYPE = {"content-type": "application/json"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request and the outcome it should have.

    `detail` is the exact `detail` of an error, `message_pattern` a regular expression for its message where that holds
    numbers of the server's own. `why` says why an outcome was chosen where the collection leaves a choice or names
    another. `document` is the JSON in a body that is more than that.
    """

    id: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: JSON_TYPE)
    status: int = 200
    detail: Any = None
    message_pattern: str | None = None
    why: str = ""
    document: bytes | None = None

    @property
    def request(self) -> dict[str, Any]:
        """The request, as the reference would be given it."""
        value = json.loads(self.body if self.document is None else self.document)
        assert isinstance(value, dict)
        return value


def _body(questions: Mapping[str, Any], state: Any = STATE, **fields: Any) -> bytes:
    return json.dumps({"model": "clef-flash", "state": state, "questions": questions} | fields).encode()


def _about(question: Mapping[str, Any]) -> bytes:
    return _body({"t": question})


def _choice(criteria: Mapping[str, Any]) -> bytes:
    return _about({"type": "choice", "instructions": "Pick", "criteria": criteria})


def _noul(criteria: Any) -> bytes:
    return _about({"type": "noul", "instructions": "Refund?", "criteria": criteria})


def _score(criteria: Any) -> bytes:
    return _about({"type": "score", "instructions": "Urgency?", "criteria": criteria})


def _raw_state(text: str) -> bytes:
    question = '{"r":{"type":"noul","instructions":"ok?"}}'
    return ('{"model":"clef-flash","questions":' + question + ',"state":' + text + "}").encode()


def _fault(loc: list[str | int], msg: str, kind: str) -> list[dict[str, Any]]:
    return [{"loc": ["body", *loc], "msg": msg, "type": kind}]


def _invalid(case_id: str, body: bytes, loc: list[str | int], msg: str, kind: str, why: str = "") -> Case:
    return Case(id=case_id, body=body, status=422, detail=_fault(loc, msg, kind), why=why)


ONE_RULE = (
    "One rule for every body that is not one unambiguous JSON document: 422 with detail[], as FastAPI answers it and "
    "as jevcompat asks of every invalid body, where the collection would also take 400."
)
NO_TEXT = "must be a string, an object or an array, not"
NO_TEXT_OR_NULL = "must be a string, an object, an array or null, not"
NOT_A_KEY = "is not a key here; the keys are type, instructions and criteria"
NOTHING_TO_DECIDE = "question 't' needs instructions, or a description of true or of false, to decide on"
UNSERVED = "is refused: the model is served here without its vision tower"
DECISIONS = {
    "temperature": "it belongs to /v1/decisions and has no meaning here: an answer is computed, not sampled",
    "prompt_format_version": "it belongs to /v1/decisions; this model has one prompt format",
    "return_prompt_token_ids": "it belongs to /v1/decisions; this API does not return token ids",
}
SURROGATE = "holds a lone surrogate, which is not Unicode"
TOO_DEEP = "the body nests deeper than 128 levels of objects and arrays"

REQUEST_SHAPE = (
    Case(id="shape-001", body=_choice({"billing": None, "logistics": None})),
    Case(id="shape-002", body=_choice({"billing": "", "logistics": ""})),
    Case(id="shape-003", body=_noul({"true": "asks for money back"})),
    Case(id="shape-003/false-only", body=_noul({"false": "asks for nothing"})),
    Case(id="shape-003/null-criteria", body=_noul(None)),
    Case(id="shape-003/empty-criteria", body=_noul({})),
    Case(id="shape-004", body=_noul({"true": "asks for money back", "false": None})),
    Case(id="shape-004/both-null", body=_noul({"true": None, "false": None})),
    _invalid(
        "shape-005",
        _body({"bad": {"type": "noul"}}),
        ["questions", "bad"],
        "question 'bad' needs instructions, or a description of true or of false, to decide on",
        "nothing_to_decide",
    ),
    *(
        _invalid(f"shape-005/{name}", _about(question), ["questions", "t"], NOTHING_TO_DECIDE, "nothing_to_decide")
        for name, question in {
            "blank-instructions": {"type": "noul", "instructions": " \n"},
            "empty-instructions": {"type": "noul", "instructions": ""},
            "empty-object": {"type": "noul", "instructions": {}},
            "null-sides": {"type": "noul", "criteria": {"true": None, "false": None}},
            "blank-side": {"type": "noul", "criteria": {"true": " "}},
        }.items()
    ),
    Case(id="shape-005/one-side-is-enough", body=_about({"type": "noul", "criteria": {"false": "asks for nothing"}})),
    Case(
        id="shape-005/choice-without-instructions",
        body=_about({"type": "choice", "criteria": {"billing": None, "logistics": None}}),
        why="The published schema lets instructions out and a choice still has options to decide on: the id is asked.",
    ),
    Case(id="shape-005/score-without-instructions", body=_about({"type": "score", "criteria": ["low", "high"]})),
    _invalid(
        "shape-007",
        _score({"0": "low", "1": "high"}),
        ["questions", "t", "criteria"],
        "question 't': criteria must be a list, not an object",
        "list_type",
    ),
    _invalid(
        "shape-007/choice-as-list",
        _about({"type": "choice", "criteria": ["billing", "logistics"]}),
        ["questions", "t", "criteria"],
        "question 't': criteria must be an object, not an array",
        "dict_type",
    ),
    _invalid(
        "shape-007/noul-as-list",
        _noul(["yes", "no"]),
        ["questions", "t", "criteria"],
        "question 't': criteria must be an object, not an array",
        "model_type",
    ),
    Case(id="shape-009", body=_score(["only"])),
    _invalid(
        "shape-010",
        _score([f"l{level}" for level in range(11)]),
        ["questions", "t", "criteria"],
        "question 't': criteria has 11 levels; the limit is 10",
        "too_long",
    ),
    Case(id="shape-010/10-levels", body=_score([f"l{level}" for level in range(10)])),
    _invalid(
        "shape-010/no-levels",
        _score([]),
        ["questions", "t", "criteria"],
        "question 't': criteria has no levels; it needs at least 1",
        "too_short",
    ),
    _invalid(
        "shape-010/null-level",
        _score(["low", None]),
        ["questions", "t", "criteria", 1],
        f"question 't': criteria.1 {NO_TEXT} null",
        "content_type",
        "The SDK refuses a null in the legend, so a level cannot be null.",
    ),
    Case(id="shape-010/structured-levels", body=_score([{"label": "low"}, ["high", 2**70]])),
    Case(id="shape-011", body=_choice({f"opt{number:03d}": None for number in range(255)})),
    _invalid(
        "shape-012",
        _choice({f"opt{number:03d}": None for number in range(256)}),
        ["questions", "t", "criteria"],
        "question 't': criteria has 256 options; the limit is 255",
        "too_long",
    ),
    Case(id="shape-013", body=_choice({"only": None})),
    _invalid(
        "shape-014",
        _choice({}),
        ["questions", "t", "criteria"],
        "question 't': criteria has no options; it needs at least 1",
        "too_short",
    ),
    _invalid(
        "shape-014/absent",
        _about({"type": "choice", "instructions": "Pick"}),
        ["questions", "t", "criteria"],
        "question 't': criteria is required",
        "missing",
    ),
    _invalid(
        "shape-014/null",
        _about({"type": "choice", "criteria": None}),
        ["questions", "t", "criteria"],
        "question 't': criteria must be an object, not null",
        "dict_type",
    ),
    _invalid(
        "shape-014/no-questions",
        _body({}),
        ["questions"],
        "questions has no questions; it needs at least 1",
        "too_short",
    ),
    Case(id="shape-024", body=_body({"ticket #42/refund? \u00e9": REFUND})),
    Case(
        id="shape-024/odd-ids",
        body=_body({" ": REFUND, "\u0000": REFUND, "질문": REFUND, "type": REFUND, "noul": REFUND}),
    ),
    _invalid(
        "shape-024/empty-id",
        _body({"": REFUND}),
        ["questions", ""],
        "question '' has an empty id; an id needs at least one character",
        "string_too_short",
    ),
    _invalid(
        "shape-028",
        _about({"type": "Noul", "instructions": "Refund?"}),
        ["questions", "t", "type"],
        "question 't': type must be one of noul, choice, score, not 'Noul'",
        "question_tag",
    ),
    _invalid(
        "shape-028/number",
        _about({"type": 1}),
        ["questions", "t", "type"],
        "question 't': type must be one of noul, choice, score, not a number",
        "question_tag",
    ),
    _invalid(
        "shape-028/absent",
        _about({"instructions": "Refund?"}),
        ["questions", "t", "type"],
        "question 't': type is required: one of noul, choice, score",
        "missing",
    ),
    _invalid(
        "shape-028/not-an-object",
        _body({"t": "Refund?"}),
        ["questions", "t"],
        "question 't' must be an object, not a string",
        "question_type",
    ),
    _invalid(
        "shape-030",
        _body({"where": {"type": "box", "instructions": "the parcel"}}),
        ["questions", "where", "type"],
        "question 'where': type box is not supported by this model; it answers noul, choice, score",
        "question_tag",
    ),
    _invalid(
        "shape-030/beside-another",
        _body({"r": REFUND, "where": {"type": "box", "instructions": "the parcel"}}),
        ["questions", "where", "type"],
        "question 'where': type box is not supported by this model; it answers noul, choice, score",
        "question_tag",
    ),
    *(
        _invalid(
            f"shape-001/description-{name}",
            _choice({"billing": description}),
            ["questions", "t", "criteria", "billing"],
            f"question 't': criteria.billing {NO_TEXT_OR_NULL} {kind}",
            "content_type",
        )
        for name, description, kind in (("number", 1.5, "a number"), ("boolean", False, "a boolean"))
    ),
    _invalid(
        "shape-001/instructions-number",
        _about({"type": "noul", "instructions": 4}),
        ["questions", "t", "instructions"],
        f"question 't': instructions {NO_TEXT_OR_NULL} a number",
        "content_type",
    ),
    Case(
        id="shape-001/several-faults",
        body=_body({"a": {"type": "noul"}, "b": {"type": "score", "criteria": []}}, state=None),
        status=422,
        detail=[
            *_fault(["state"], f"state {NO_TEXT} null", "content_type"),
            *_fault(
                ["questions", "a"],
                "question 'a' needs instructions, or a description of true or of false, to decide on",
                "nothing_to_decide",
            ),
            *_fault(
                ["questions", "b", "criteria"], "question 'b': criteria has no levels; it needs at least 1", "too_short"
            ),
        ],
    ),
)

OPTION_NAMES = (
    Case(id="shape-016", body=_choice({"Yes": "upper", "yes": "lower"})),
    Case(
        id="shape-017",
        body=_choice({"a": "x", " a": "y", "a ": "z"}),
        why="The prompt quotes names, so blanks tell them apart there too: answered, byte for byte.",
    ),
    Case(id="shape-017/empty-name", body=_choice({"": None, " ": None})),
    Case(id="shape-018", body=_choice({"caf\u00e9": None, "cafe\u0301": None})),
    Case(id="shape-018/width", body=_choice({"A": None, "\uff21": None})),
    Case(
        id="shape-020",
        body=_choice({"line1\nline2": None, "tab\there": None}),
        why="The prompt escapes control characters, so they are harmless: answered as the reference answers.",
    ),
    Case(
        id="shape-020/nul-and-separators", body=_choice({"\u0000": None, "\u2028": None, "\u0085": None, "\x7f": None})
    ),
    Case(id="shape-020/quotes", body=_choice({'"': None, "\\": None, '","option_id":"x': None})),
    Case(
        id="shape-021",
        body=_choice({"word " * 20000: None, "b": None}),
        status=413,
        message_pattern=r"the prompt has .*\d+ tokens and the limit is \d+: state .*\d+, schema .*\d+, fixed text \d+.*",
        detail="prompt_too_long",
        why="For a server whose limit is below 20,000 tokens; on one above it this schema fits and is answered.",
    ),
    Case(id="shape-021/fits", body=_choice({"word " * 1000: None, "b": None})),
)

STATES = (
    *(
        _invalid(
            f"shape-032/{name}", _body({"r": REFUND}, state=state), ["state"], f"state {NO_TEXT} {kind}", "content_type"
        )
        for name, state, kind in (
            ("true", True, "a boolean"),
            ("42", 42, "a number"),
            ("1.5", 1.5, "a number"),
            ("null", None, "null"),
        )
    ),
    _invalid(
        "shape-032/absent",
        json.dumps({"model": "clef-flash", "questions": {"r": REFUND}}).encode(),
        ["state"],
        "state is required",
        "missing",
    ),
    Case(id="shape-033/string", body=_body({"r": REFUND}, state="")),
    Case(id="shape-033/object", body=_body({"r": REFUND}, state={})),
    Case(id="shape-033/array", body=_body({"r": REFUND}, state=[])),
    Case(id="shape-035", body=_raw_state('{"order":12345678901234567890123}')),
    Case(id="shape-035/negative", body=_raw_state('{"order":-98765432109876543210987654321}')),
    Case(id="shape-035/4300-digits", body=_raw_state('{"order":' + "7" * 4300 + "}")),
    _invalid(
        "shape-035/4301-digits",
        _raw_state('{"order":' + "7" * 4301 + "}"),
        [],
        "the body is not JSON this server reads: an integer has more than 4300 digits",
        "json_invalid",
        "Python converts no more digits; refused rather than altered.",
    ),
    Case(id="shape-036", body=_raw_state('{"a":1250,"b":1250.0,"c":-0.0,"d":1e16,"e":5e-324}')),
    Case(id="shape-036/more", body=_raw_state('{"a":1E5,"b":0.1,"c":1e-5,"d":123456789012345678.0,"e":-0,"f":1e15}')),
)

JSON = (
    *(
        _invalid(
            f"json-001/{name}",
            _raw_state('{"x":' + name + "}"),
            [],
            f"the body is not JSON this server reads: {name} is not a JSON number",
            "json_invalid",
            ONE_RULE,
        )
        for name in ("NaN", "Infinity", "-Infinity")
    ),
    *(
        _invalid(
            f"json-002/{literal}",
            _raw_state('{"x":' + literal + "}"),
            [],
            f"the body is not JSON this server reads: the number {literal} is beyond the range of a double",
            "json_invalid",
            ONE_RULE,
        )
        for literal in ("1e400", "-1e400", "1.5E+999")
    ),
    _invalid("json-005", _raw_state('"bad \\ud800 end"'), ["state"], f"the text {SURROGATE}", "string_unicode"),
    _invalid(
        "json-005/nested-key",
        _raw_state('{"a":[{"\\uDFFF":1}]}'),
        ["state", "a", 0, "\\udfff"],
        f"the key '\\udfff' {SURROGATE}",
        "string_unicode",
    ),
    _invalid(
        "json-005/question-id",
        b'{"state":"","questions":{"\\ud83d":{"type":"noul","instructions":"ok?"}}}',
        ["questions", "\\ud83d"],
        f"the key '\\ud83d' {SURROGATE}",
        "string_unicode",
    ),
    _invalid(
        "json-005/option-name",
        b'{"state":"","questions":{"t":{"type":"choice","criteria":{"\\ud83d\\ud83d":null}}}}',
        ["questions", "t", "criteria", "\\ud83d\\ud83d"],
        f"the key '\\ud83d\\ud83d' {SURROGATE}",
        "string_unicode",
    ),
    _invalid(
        "json-005/instructions",
        b'{"state":"","questions":{"t":{"type":"noul","instructions":["\\ude00\\ud83d"]}}}',
        ["questions", "t", "instructions", 0],
        f"the text {SURROGATE}",
        "string_unicode",
    ),
    _invalid(
        "json-005/model",
        b'{"model":"\\ud800","state":"","questions":{}}',
        ["model"],
        f"the text {SURROGATE}",
        "string_unicode",
    ),
    Case(id="json-005/pair", body=_raw_state('"a pair \\ud83d\\ude00 is one character"')),
    *(
        _invalid(
            f"json-006/{name}",
            _raw_state(opening * depth + value + closing * depth),
            [],
            TOO_DEEP,
            "nesting_too_deep",
        )
        for name, depth, opening, value, closing in (
            ("arrays-128", 128, "[", "", "]"),
            ("objects-128", 128, '{"a":', "0", "}"),
            ("arrays-1010", 1010, "[", "", "]"),
            ("objects-1010", 1010, '{"a":', "0", "}"),
            ("arrays-100000", 100_000, "[", "", "]"),
            ("objects-100000", 100_000, '{"a":', "0", "}"),
            ("unclosed", 100_000, "[", "", ""),
        )
    ),
    Case(id="json-006/deep-level", body=_score([json.loads("[" * 124 + "]" * 124)])),
    Case(id="json-006/127", body=_raw_state("[" * 127 + "]" * 127)),
    *(
        _invalid(f"json-008/{name}", body, loc, message, kind, ONE_RULE)
        for name, body, loc, message, kind in (
            ("not-json", b"not json", [0], "the body is not JSON: Expecting value at character 0", "json_invalid"),
            ("cut-off", b'{"state":', [9], "the body is not JSON: Expecting value at character 9", "json_invalid"),
            ("trailing", b"{} {}", [3], "the body is not JSON: Extra data at character 3", "json_invalid"),
            ("empty", b"", [0], "the body is empty; it must be a JSON object", "json_invalid"),
            ("blank", b" \r\n", [0], "the body is empty; it must be a JSON object", "json_invalid"),
            ("array", b"[]", [], "the body must be a JSON object, not an array", "dict_type"),
            ("string", b'"x"', [], "the body must be a JSON object, not a string", "dict_type"),
            ("number", b"1", [], "the body must be a JSON object, not a number", "dict_type"),
            ("null", b"null", [], "the body must be a JSON object, not null", "dict_type"),
            (
                "latin-1",
                b'{"state":"\xe9"}',
                [10],
                "the body is not UTF-8: byte 10 invalid continuation byte",
                "json_invalid",
            ),
            (
                "utf-16",
                '{"state":""}'.encode("utf-16"),
                [0],
                "the body is not UTF-8: byte 0 invalid start byte",
                "json_invalid",
            ),
        )
    ),
    Case(
        id="json-009/text-plain",
        body=_body({"r": REFUND}),
        headers={"content-type": "text/plain"},
        status=415,
        detail={
            "error_type": "unsupported_media_type",
            "message": "content-type 'text/plain' is not supported; send application/json or multipart/form-data",
        },
    ),
    Case(
        id="json-009/multipart",
        body=b'--x\r\ncontent-disposition: form-data; name="request"\r\n\r\n' + _body({"r": REFUND}) + b"\r\n--x--\r\n",
        headers={"content-type": "multipart/form-data; boundary=x"},
        document=_body({"r": REFUND}),
    ),
    Case(
        id="json-009/charset-latin-1",
        body=_body({"r": REFUND}),
        headers={"content-type": "application/json; charset=iso-8859-1"},
        status=415,
        detail={
            "error_type": "unsupported_media_type",
            "message": "charset 'iso-8859-1' is not supported; JSON is sent in UTF-8",
        },
    ),
    Case(id="json-009/charset", body=_body({"r": REFUND}), headers={"content-type": "application/json;charset=utf-8"}),
    Case(
        id="json-009/quoted-charset",
        body=_body({"r": REFUND}),
        headers={"content-type": 'Application/JSON; charset="UTF-8"'},
    ),
    Case(id="json-009/suffix", body=_body({"r": REFUND}), headers={"content-type": "application/vnd.example+json"}),
    Case(id="json-009/absent", body=_body({"r": REFUND}), headers={}),
    Case(id="json-009/identity", body=_body({"r": REFUND}), headers=JSON_TYPE | {"content-encoding": "identity"}),
    Case(id="json-010", body=_raw_state('"a\\u0000b"')),
    _invalid(
        "json-010/bom",
        b"\xef\xbb\xbf" + _body({"r": REFUND}),
        [0],
        "the body starts with a byte order mark, which JSON does not allow",
        "json_invalid",
        "The collection says 400; " + ONE_RULE,
    ),
    Case(id="json-010/bom-inside", body=_raw_state('"\\ufeff at the start of the text"')),
    *(
        _invalid(f"json-001/repeated-{name}", body, loc, f"the key '{key}' appears twice in one object", "repeated_key")
        for name, body, loc, key in (
            (
                "question",
                b'{"state":"","questions":{"r":{"type":"noul","instructions":"a?"},"r":{"type":"noul","instructions":"b?"}}}',
                ["questions", "r"],
                "r",
            ),
            (
                "option",
                b'{"state":"","questions":{"t":{"type":"choice","criteria":{"a":"x","b":null,"a":"y"}}}}',
                ["questions", "t", "criteria", "a"],
                "a",
            ),
            (
                "option-escaped",
                b'{"state":"","questions":{"t":{"type":"choice","criteria":{"a":"x","\\u0061":"y"}}}}',
                ["questions", "t", "criteria", "a"],
                "a",
            ),
            ("state-key", _raw_state('{"a":{"b":1,"b":2}}'), ["state", "a", "b"], "b"),
            ("state", b'{"state":"one","questions":{},"state":"two"}', ["state"], "state"),
        )
    ),
)

UNKNOWN_FIELDS = (
    _invalid(
        "shape-025",
        _body({"r": {"type": "noul", "instruction": "Refund?", "criteria": {"true": "yes"}}}),
        ["questions", "r", "instruction"],
        f"question 'r': instruction {NOT_A_KEY}",
        "extra_forbidden",
    ),
    *(
        _invalid(
            f"shape-025/{question['type']}",
            _about(question),
            ["questions", "t", key],
            f"question 't': {key} {NOT_A_KEY}",
            "extra_forbidden",
        )
        for key, question in (
            ("options", {"type": "choice", "criteria": {"a": None}, "options": ["a"]}),
            ("levels", {"type": "score", "criteria": ["low"], "levels": 3}),
        )
    ),
    _invalid(
        "shape-025/noul-side",
        _noul({"true": "asks", "no": "does not ask"}),
        ["questions", "t", "criteria", "no"],
        "question 't': criteria.no is not a key here; the keys are true and false",
        "extra_forbidden",
    ),
    *(
        _invalid(
            f"shape-027/{name}",
            _body({"r": REFUND}, **{name: value}),
            [name, 0],
            f"{name}.0 {UNSERVED}",
            "media_not_served",
        )
        for name, value in (
            ("images", ["data:image/png;base64,AAAA"]),
            ("videos", [{"frames": ["data:image/png;base64,AAAA"], "fps": 1}]),
        )
    ),
    _invalid(
        "shape-027/media_kwargs",
        _body({"r": REFUND}, media_kwargs={"min_pixels": 1}),
        ["media_kwargs", "min_pixels"],
        "media_kwargs.min_pixels is not a key here; the keys are fps, num_frames and do_sample_frames",
        "extra_forbidden",
        "Sizes that the model was not trained on would change its answers.",
    ),
    _invalid(
        "shape-027/files",
        _body({"r": REFUND}, files=["AAAA"]),
        ["files"],
        "files is refused: media are sent in images, videos or assets",
        "field_not_supported",
    ),
    _invalid(
        "asset-005",
        _body({"r": REFUND}, assets={}),
        ["assets"],
        "assets has no assets; it needs at least 1",
        "too_short",
        "The published schema wants at least one asset where there is `assets`.",
    ),
    Case(id="shape-027/no-media", body=_body({"r": REFUND}, assets=None, images=[], videos=[], media_kwargs={})),
    *(
        _invalid(
            "shape-040" if name == "temperature" else f"shape-040/{name}",
            _body({"r": REFUND}, **{name: value}),
            [name],
            f"{name} is refused: {DECISIONS[name]}",
            "field_not_supported",
        )
        for name, value in (("temperature", 0.7), ("prompt_format_version", 2), ("return_prompt_token_ids", True))
    ),
    Case(id="shape-040/null", body=_body({"r": REFUND}, temperature=None)),
    Case(
        id="shape-040/over_limit",
        body=_body({"r": REFUND}, over_limit="truncate"),
        why="It has a meaning here, and none for a prompt that fits.",
    ),
    _invalid(
        "shape-040/over_limit-unknown",
        _body({"r": REFUND}, over_limit="cut"),
        ["over_limit"],
        "over_limit must be 'refuse' or 'truncate'",
        "literal_error",
    ),
    Case(
        id="shape-040/unknown",
        body=_body({"r": REFUND}, seed=7, x_trace_id="trace-1", user={"name": "Ada"}),
        why="Unknown fields beside the published ones are ignored, as jevcompat asks.",
    ),
)

MODELS = (
    Case(id="model-001", body=_body({"r": REFUND}, model="jev-latest")),
    Case(id="model-001/null", body=_body({"r": REFUND}, model=None)),
    Case(
        id="model-003",
        body=json.dumps({"state": STATE, "questions": {"r": REFUND}}).encode(),
        why="The served model is the default.",
    ),
    Case(
        id="model-001/unknown",
        body=_body({"r": REFUND}, model="no-such-model"),
        status=404,
        detail="model_not_found_error",
        message_pattern=r"no model 'no-such-model' is served here; the names are .+",
    ),
    Case(
        id="model-001/other-case",
        body=_body({"r": REFUND}, model="JEV-LATEST"),
        status=404,
        detail="model_not_found_error",
        message_pattern=r"no model 'JEV-LATEST' is served here; the names are .+",
    ),
    _invalid(
        "model-001/number",
        _body({"r": REFUND}, model=3),
        ["model"],
        "model must be a string, not a number",
        "string_type",
    ),
)

ROUNDING = (
    Case(id="num-004", body=_body({"refund": REFUND})),
    Case(
        id="num-005",
        body=_body(
            {
                "t": {
                    "type": "choice",
                    "instructions": "Pick",
                    "criteria": {f"opt{number:03d}": None for number in range(255)},
                },
                "u": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "medium", "high"]},
            }
        ),
    ),
)

ISOLATION = (
    Case(
        id="num-008",
        body=_body({"refund": REFUND}),
        why="As sent, the id is part of the prompt, as in the reference.",
    ),
    *(
        _invalid(
            f"num-008/{name}",
            _body({"refund": REFUND}, x_question_ids=value),
            ["x_question_ids"],
            "x_question_ids must be 'sent' or 'neutral'",
            "literal_error",
        )
        for name, value in (("unknown", "hidden"), ("null", None), ("true", True), ("object", {}), ("array", []))
    ),
    Case(
        id="num-009",
        body=_body(
            {
                "refund": REFUND,
                "team": {
                    "type": "choice",
                    "instructions": "Which team?",
                    "criteria": {"billing": "payments", "logistics": "shipping damage"},
                },
                "u": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "medium", "high"]},
            }
        ),
        why="Together by default, as in the reference.",
    ),
    *(
        _invalid(
            f"num-009/{name}",
            _body({"refund": REFUND}, x_isolated=value),
            ["x_isolated"],
            f"x_isolated must be true or false, not {kind}",
            "bool_type",
        )
        for name, value, kind in (("text", "true", "a string"), ("number", 1, "a number"), ("null", None, "null"))
    ),
    _invalid(
        "num-009/129-questions",
        _body({f"r{number}": REFUND for number in range(129)}, x_isolated=True),
        ["x_isolated"],
        "x_isolated takes at most 128 questions, not 129",
        "too_many_isolated",
    ),
)

CASES = (*REQUEST_SHAPE, *OPTION_NAMES, *STATES, *JSON, *UNKNOWN_FIELDS, *MODELS, *ROUNDING, *ISOLATION)
assert len({case.id for case in CASES}) == len(CASES)

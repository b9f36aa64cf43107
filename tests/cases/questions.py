"""Cases of questions: their types, criteria and options, and what an option may be called."""

from tests.cases.case import REFUND, Case, about, body, choice, fault, invalid, noul, score

NO_TEXT = "must be a string, an object or an array, not"
NO_TEXT_OR_NULL = "must be a string, an object, an array or null, not"
NOT_A_KEY = "is not a key here; the keys are type, instructions and criteria"
NOTHING_TO_DECIDE = "question 't' needs instructions, or a description of true or of false, to decide on"

REQUEST_SHAPE = (
    Case(id="shape-001", body=choice({"billing": None, "logistics": None})),
    Case(id="shape-002", body=choice({"billing": "", "logistics": ""})),
    Case(id="shape-003", body=noul({"true": "asks for money back"})),
    Case(id="shape-003/false-only", body=noul({"false": "asks for nothing"})),
    Case(id="shape-003/null-criteria", body=noul(None)),
    Case(id="shape-003/empty-criteria", body=noul({})),
    Case(id="shape-004", body=noul({"true": "asks for money back", "false": None})),
    Case(id="shape-004/both-null", body=noul({"true": None, "false": None})),
    invalid(
        "shape-005",
        body({"bad": {"type": "noul"}}),
        ["questions", "bad"],
        "question 'bad' needs instructions, or a description of true or of false, to decide on",
        "nothing_to_decide",
    ),
    *(
        invalid(f"shape-005/{name}", about(question), ["questions", "t"], NOTHING_TO_DECIDE, "nothing_to_decide")
        for name, question in {
            "blank-instructions": {"type": "noul", "instructions": " \n"},
            "empty-instructions": {"type": "noul", "instructions": ""},
            "empty-object": {"type": "noul", "instructions": {}},
            "null-sides": {"type": "noul", "criteria": {"true": None, "false": None}},
            "blank-side": {"type": "noul", "criteria": {"true": " "}},
        }.items()
    ),
    Case(id="shape-005/one-side-is-enough", body=about({"type": "noul", "criteria": {"false": "asks for nothing"}})),
    Case(
        id="shape-005/choice-without-instructions",
        body=about({"type": "choice", "criteria": {"billing": None, "logistics": None}}),
        why="The published schema lets instructions out and a choice still has options to decide on: the id is asked.",
    ),
    Case(id="shape-005/score-without-instructions", body=about({"type": "score", "criteria": ["low", "high"]})),
    invalid(
        "shape-007",
        score({"0": "low", "1": "high"}),
        ["questions", "t", "criteria"],
        "question 't': criteria must be a list, not an object",
        "list_type",
    ),
    invalid(
        "shape-007/choice-as-list",
        about({"type": "choice", "criteria": ["billing", "logistics"]}),
        ["questions", "t", "criteria"],
        "question 't': criteria must be an object, not an array",
        "dict_type",
    ),
    invalid(
        "shape-007/noul-as-list",
        noul(["yes", "no"]),
        ["questions", "t", "criteria"],
        "question 't': criteria must be an object, not an array",
        "model_type",
    ),
    Case(id="shape-009", body=score(["only"])),
    invalid(
        "shape-010",
        score([f"l{level}" for level in range(11)]),
        ["questions", "t", "criteria"],
        "question 't': criteria has 11 levels; the limit is 10",
        "too_long",
    ),
    Case(id="shape-010/10-levels", body=score([f"l{level}" for level in range(10)])),
    invalid(
        "shape-010/no-levels",
        score([]),
        ["questions", "t", "criteria"],
        "question 't': criteria has no levels; it needs at least 1",
        "too_short",
    ),
    invalid(
        "shape-010/null-level",
        score(["low", None]),
        ["questions", "t", "criteria", 1],
        f"question 't': criteria.1 {NO_TEXT} null",
        "content_type",
        "The SDK refuses a null in the legend, so a level cannot be null.",
    ),
    Case(id="shape-010/structured-levels", body=score([{"label": "low"}, ["high", 2**70]])),
    Case(id="shape-011", body=choice({f"opt{number:03d}": None for number in range(255)})),
    invalid(
        "shape-012",
        choice({f"opt{number:03d}": None for number in range(256)}),
        ["questions", "t", "criteria"],
        "question 't': criteria has 256 options; the limit is 255",
        "too_long",
    ),
    Case(id="shape-013", body=choice({"only": None})),
    invalid(
        "shape-014",
        choice({}),
        ["questions", "t", "criteria"],
        "question 't': criteria has no options; it needs at least 1",
        "too_short",
    ),
    invalid(
        "shape-014/absent",
        about({"type": "choice", "instructions": "Pick"}),
        ["questions", "t", "criteria"],
        "question 't': criteria is required",
        "missing",
    ),
    invalid(
        "shape-014/null",
        about({"type": "choice", "criteria": None}),
        ["questions", "t", "criteria"],
        "question 't': criteria must be an object, not null",
        "dict_type",
    ),
    invalid(
        "shape-014/no-questions",
        body({}),
        ["questions"],
        "questions has no questions; it needs at least 1",
        "too_short",
    ),
    Case(id="shape-024", body=body({"ticket #42/refund? \u00e9": REFUND})),
    Case(
        id="shape-024/odd-ids",
        body=body({" ": REFUND, "\u0000": REFUND, "질문": REFUND, "type": REFUND, "noul": REFUND}),
    ),
    invalid(
        "shape-024/empty-id",
        body({"": REFUND}),
        ["questions", ""],
        "question '' has an empty id; an id needs at least one character",
        "string_too_short",
    ),
    invalid(
        "shape-028",
        about({"type": "Noul", "instructions": "Refund?"}),
        ["questions", "t", "type"],
        "question 't': type must be one of noul, choice, score, not 'Noul'",
        "question_tag",
    ),
    invalid(
        "shape-028/number",
        about({"type": 1}),
        ["questions", "t", "type"],
        "question 't': type must be one of noul, choice, score, not a number",
        "question_tag",
    ),
    invalid(
        "shape-028/absent",
        about({"instructions": "Refund?"}),
        ["questions", "t", "type"],
        "question 't': type is required: one of noul, choice, score",
        "missing",
    ),
    invalid(
        "shape-028/not-an-object",
        body({"t": "Refund?"}),
        ["questions", "t"],
        "question 't' must be an object, not a string",
        "question_type",
    ),
    invalid(
        "shape-030",
        body({"where": {"type": "box", "instructions": "the parcel"}}),
        ["questions", "where", "type"],
        "question 'where': type box is not supported by this model; it answers noul, choice, score",
        "question_tag",
    ),
    invalid(
        "shape-030/beside-another",
        body({"r": REFUND, "where": {"type": "box", "instructions": "the parcel"}}),
        ["questions", "where", "type"],
        "question 'where': type box is not supported by this model; it answers noul, choice, score",
        "question_tag",
    ),
    *(
        invalid(
            f"shape-001/description-{name}",
            choice({"billing": description}),
            ["questions", "t", "criteria", "billing"],
            f"question 't': criteria.billing {NO_TEXT_OR_NULL} {kind}",
            "content_type",
        )
        for name, description, kind in (("number", 1.5, "a number"), ("boolean", False, "a boolean"))
    ),
    invalid(
        "shape-001/instructions-number",
        about({"type": "noul", "instructions": 4}),
        ["questions", "t", "instructions"],
        f"question 't': instructions {NO_TEXT_OR_NULL} a number",
        "content_type",
    ),
    Case(
        id="shape-001/several-faults",
        body=body({"a": {"type": "noul"}, "b": {"type": "score", "criteria": []}}, state=None),
        status=422,
        detail=[
            *fault(["state"], f"state {NO_TEXT} null", "content_type"),
            *fault(
                ["questions", "a"],
                "question 'a' needs instructions, or a description of true or of false, to decide on",
                "nothing_to_decide",
            ),
            *fault(
                ["questions", "b", "criteria"], "question 'b': criteria has no levels; it needs at least 1", "too_short"
            ),
        ],
    ),
)

OPTION_NAMES = (
    Case(id="shape-016", body=choice({"Yes": "upper", "yes": "lower"})),
    Case(
        id="shape-017",
        body=choice({"a": "x", " a": "y", "a ": "z"}),
        why="The prompt quotes names, so blanks tell them apart there too: answered, byte for byte.",
    ),
    Case(id="shape-017/empty-name", body=choice({"": None, " ": None})),
    Case(id="shape-018", body=choice({"caf\u00e9": None, "cafe\u0301": None})),
    Case(id="shape-018/width", body=choice({"A": None, "\uff21": None})),
    Case(
        id="shape-020",
        body=choice({"line1\nline2": None, "tab\there": None}),
        why="The prompt escapes control characters, so they are harmless: answered as the reference answers.",
    ),
    Case(
        id="shape-020/nul-and-separators", body=choice({"\u0000": None, "\u2028": None, "\u0085": None, "\x7f": None})
    ),
    Case(id="shape-020/quotes", body=choice({'"': None, "\\": None, '","option_id":"x': None})),
    Case(
        id="shape-021",
        body=choice({"word " * 20000: None, "b": None}),
        status=413,
        message_pattern=r"the prompt has .*\d+ tokens and the limit is \d+: state .*\d+, schema .*\d+, fixed text \d+.*",
        detail="prompt_too_long",
        why="For a server whose limit is below 20,000 tokens; on one above it this schema fits and is answered.",
    ),
    Case(id="shape-021/fits", body=choice({"word " * 1000: None, "b": None})),
)

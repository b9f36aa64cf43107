"""Cases of a request's other fields: unknown ones, the model's name, and answers that ids and other questions move."""

import json

from tests.cases.case import REFUND, STATE, Case, about, body, invalid, noul

NOT_A_KEY = "is not a key here; the keys are type, instructions and criteria"
DECISIONS = {
    "temperature": "it belongs to /v1/decisions and has no meaning here: an answer is computed, not sampled",
    "prompt_format_version": "it belongs to /v1/decisions; this model has one prompt format",
    "return_prompt_token_ids": "it belongs to /v1/decisions; this API does not return token ids",
}

UNKNOWN_FIELDS = (
    invalid(
        "shape-025",
        body({"r": {"type": "noul", "instruction": "Refund?", "criteria": {"true": "yes"}}}),
        ["questions", "r", "instruction"],
        f"question 'r': instruction {NOT_A_KEY}",
        "extra_forbidden",
    ),
    *(
        invalid(
            f"shape-025/{question['type']}",
            about(question),
            ["questions", "t", key],
            f"question 't': {key} {NOT_A_KEY}",
            "extra_forbidden",
        )
        for key, question in (
            ("options", {"type": "choice", "criteria": {"a": None}, "options": ["a"]}),
            ("levels", {"type": "score", "criteria": ["low"], "levels": 3}),
        )
    ),
    invalid(
        "shape-025/noul-side",
        noul({"true": "asks", "no": "does not ask"}),
        ["questions", "t", "criteria", "no"],
        "question 't': criteria.no is not a key here; the keys are true and false",
        "extra_forbidden",
    ),
    invalid(
        "shape-027/media_kwargs",
        body({"r": REFUND}, media_kwargs={"min_pixels": 1}),
        ["media_kwargs", "min_pixels"],
        "media_kwargs.min_pixels is not a key here; the keys are fps, num_frames and do_sample_frames",
        "extra_forbidden",
        "Sizes that the model was not trained on would change its answers.",
    ),
    invalid(
        "shape-027/files",
        body({"r": REFUND}, files=["AAAA"]),
        ["files"],
        "files is refused: media are sent in images, videos or assets",
        "field_not_supported",
    ),
    Case(id="shape-027/no-media", body=body({"r": REFUND}, assets=None, images=[], videos=[], media_kwargs={})),
    *(
        invalid(
            "shape-040" if name == "temperature" else f"shape-040/{name}",
            body({"r": REFUND}, **{name: value}),
            [name],
            f"{name} is refused: {DECISIONS[name]}",
            "field_not_supported",
        )
        for name, value in (("temperature", 0.7), ("prompt_format_version", 2), ("return_prompt_token_ids", True))
    ),
    Case(id="shape-040/null", body=body({"r": REFUND}, temperature=None)),
    Case(
        id="shape-040/over_limit",
        body=body({"r": REFUND}, over_limit="truncate"),
        why="It has a meaning here, and none for a prompt that fits.",
    ),
    invalid(
        "shape-040/over_limit-unknown",
        body({"r": REFUND}, over_limit="cut"),
        ["over_limit"],
        "over_limit must be 'refuse' or 'truncate'",
        "literal_error",
    ),
    Case(
        id="shape-040/unknown",
        body=body({"r": REFUND}, seed=7, x_trace_id="trace-1", user={"name": "Ada"}),
        why="Unknown fields beside the published ones are ignored, as jevcompat asks.",
    ),
)

MODELS = (
    Case(id="model-001", body=body({"r": REFUND}, model="jev-latest")),
    Case(id="model-001/null", body=body({"r": REFUND}, model=None)),
    Case(
        id="model-003",
        body=json.dumps({"state": STATE, "questions": {"r": REFUND}}).encode(),
        why="The served model is the default.",
    ),
    Case(
        id="model-001/unknown",
        body=body({"r": REFUND}, model="no-such-model"),
        status=404,
        detail="model_not_found_error",
        message_pattern=r"no model 'no-such-model' is served here; the names are .+",
    ),
    Case(
        id="model-001/other-case",
        body=body({"r": REFUND}, model="JEV-LATEST"),
        status=404,
        detail="model_not_found_error",
        message_pattern=r"no model 'JEV-LATEST' is served here; the names are .+",
    ),
    invalid(
        "model-001/number",
        body({"r": REFUND}, model=3),
        ["model"],
        "model must be a string, not a number",
        "string_type",
    ),
)

ROUNDING = (
    Case(id="num-004", body=body({"refund": REFUND})),
    Case(
        id="num-005",
        body=body(
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
        body=body({"refund": REFUND}),
        why="As sent, the id is part of the prompt, as in the reference.",
    ),
    *(
        invalid(
            f"num-008/{name}",
            body({"refund": REFUND}, x_question_ids=value),
            ["x_question_ids"],
            "x_question_ids must be 'sent' or 'neutral'",
            "literal_error",
        )
        for name, value in (("unknown", "hidden"), ("null", None), ("true", True), ("object", {}), ("array", []))
    ),
    Case(
        id="num-009",
        body=body(
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
        invalid(
            f"num-009/{name}",
            body({"refund": REFUND}, x_isolated=value),
            ["x_isolated"],
            f"x_isolated must be true or false, not {kind}",
            "bool_type",
        )
        for name, value, kind in (("text", "true", "a string"), ("number", 1, "a number"), ("null", None, "null"))
    ),
    invalid(
        "num-009/129-questions",
        body({f"r{number}": REFUND for number in range(129)}, x_isolated=True),
        ["x_isolated"],
        "x_isolated takes at most 128 questions, not 129",
        "too_many_isolated",
    ),
)

"""Cases of texts: what a state may be, and bytes that are JSON, nearly JSON, or not."""

import json

from tests.cases.case import JSON_TYPE, REFUND, Case, body, invalid, raw_state, score

ONE_RULE = (
    "One rule for every body that is not one unambiguous JSON document: 422 with detail[], as FastAPI answers it and "
    "as jevcompat asks of every invalid body, where the collection would also take 400."
)
NO_TEXT = "must be a string, an object or an array, not"
SURROGATE = "holds a lone surrogate, which is not Unicode"
TOO_DEEP = "the body nests deeper than 128 levels of objects and arrays"

STATES = (
    *(
        invalid(
            f"shape-032/{name}", body({"r": REFUND}, state=state), ["state"], f"state {NO_TEXT} {kind}", "content_type"
        )
        for name, state, kind in (
            ("true", True, "a boolean"),
            ("42", 42, "a number"),
            ("1.5", 1.5, "a number"),
            ("null", None, "null"),
        )
    ),
    invalid(
        "shape-032/absent",
        json.dumps({"model": "clef-flash", "questions": {"r": REFUND}}).encode(),
        ["state"],
        "state is required",
        "missing",
    ),
    Case(id="shape-033/string", body=body({"r": REFUND}, state="")),
    Case(id="shape-033/object", body=body({"r": REFUND}, state={})),
    Case(id="shape-033/array", body=body({"r": REFUND}, state=[])),
    Case(id="shape-035", body=raw_state('{"order":12345678901234567890123}')),
    Case(id="shape-035/negative", body=raw_state('{"order":-98765432109876543210987654321}')),
    Case(id="shape-035/4300-digits", body=raw_state('{"order":' + "7" * 4300 + "}")),
    invalid(
        "shape-035/4301-digits",
        raw_state('{"order":' + "7" * 4301 + "}"),
        [],
        "the body is not JSON this server reads: an integer has more than 4300 digits",
        "json_invalid",
        "Python converts no more digits; refused rather than altered.",
    ),
    Case(id="shape-036", body=raw_state('{"a":1250,"b":1250.0,"c":-0.0,"d":1e16,"e":5e-324}')),
    Case(id="shape-036/more", body=raw_state('{"a":1E5,"b":0.1,"c":1e-5,"d":123456789012345678.0,"e":-0,"f":1e15}')),
)

JSON = (
    *(
        invalid(
            f"json-001/{name}",
            raw_state('{"x":' + name + "}"),
            [],
            f"the body is not JSON this server reads: {name} is not a JSON number",
            "json_invalid",
            ONE_RULE,
        )
        for name in ("NaN", "Infinity", "-Infinity")
    ),
    *(
        invalid(
            f"json-002/{literal}",
            raw_state('{"x":' + literal + "}"),
            [],
            f"the body is not JSON this server reads: the number {literal} is beyond the range of a double",
            "json_invalid",
            ONE_RULE,
        )
        for literal in ("1e400", "-1e400", "1.5E+999")
    ),
    invalid("json-005", raw_state('"bad \\ud800 end"'), ["state"], f"the text {SURROGATE}", "string_unicode"),
    invalid(
        "json-005/nested-key",
        raw_state('{"a":[{"\\uDFFF":1}]}'),
        ["state", "a", 0, "\\udfff"],
        f"the key '\\udfff' {SURROGATE}",
        "string_unicode",
    ),
    invalid(
        "json-005/question-id",
        b'{"state":"","questions":{"\\ud83d":{"type":"noul","instructions":"ok?"}}}',
        ["questions", "\\ud83d"],
        f"the key '\\ud83d' {SURROGATE}",
        "string_unicode",
    ),
    invalid(
        "json-005/option-name",
        b'{"state":"","questions":{"t":{"type":"choice","criteria":{"\\ud83d\\ud83d":null}}}}',
        ["questions", "t", "criteria", "\\ud83d\\ud83d"],
        f"the key '\\ud83d\\ud83d' {SURROGATE}",
        "string_unicode",
    ),
    invalid(
        "json-005/instructions",
        b'{"state":"","questions":{"t":{"type":"noul","instructions":["\\ude00\\ud83d"]}}}',
        ["questions", "t", "instructions", 0],
        f"the text {SURROGATE}",
        "string_unicode",
    ),
    invalid(
        "json-005/model",
        b'{"model":"\\ud800","state":"","questions":{}}',
        ["model"],
        f"the text {SURROGATE}",
        "string_unicode",
    ),
    Case(id="json-005/pair", body=raw_state('"a pair \\ud83d\\ude00 is one character"')),
    *(
        invalid(
            f"json-006/{name}",
            raw_state(opening * depth + value + closing * depth),
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
    Case(id="json-006/deep-level", body=score([json.loads("[" * 124 + "]" * 124)])),
    Case(id="json-006/127", body=raw_state("[" * 127 + "]" * 127)),
    *(
        invalid(f"json-008/{name}", body, loc, message, kind, ONE_RULE)
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
        body=body({"r": REFUND}),
        headers={"content-type": "text/plain"},
        status=415,
        detail={
            "error_type": "unsupported_media_type",
            "message": "content-type 'text/plain' is not supported; send application/json or multipart/form-data",
        },
    ),
    Case(
        id="json-009/multipart",
        body=b'--x\r\ncontent-disposition: form-data; name="request"\r\n\r\n' + body({"r": REFUND}) + b"\r\n--x--\r\n",
        headers={"content-type": "multipart/form-data; boundary=x"},
        document=body({"r": REFUND}),
    ),
    Case(
        id="json-009/charset-latin-1",
        body=body({"r": REFUND}),
        headers={"content-type": "application/json; charset=iso-8859-1"},
        status=415,
        detail={
            "error_type": "unsupported_media_type",
            "message": "charset 'iso-8859-1' is not supported; JSON is sent in UTF-8",
        },
    ),
    Case(id="json-009/charset", body=body({"r": REFUND}), headers={"content-type": "application/json;charset=utf-8"}),
    Case(
        id="json-009/quoted-charset",
        body=body({"r": REFUND}),
        headers={"content-type": 'Application/JSON; charset="UTF-8"'},
    ),
    Case(id="json-009/suffix", body=body({"r": REFUND}), headers={"content-type": "application/vnd.example+json"}),
    Case(id="json-009/absent", body=body({"r": REFUND}), headers={}),
    Case(id="json-009/identity", body=body({"r": REFUND}), headers=JSON_TYPE | {"content-encoding": "identity"}),
    Case(id="json-010", body=raw_state('"a\\u0000b"')),
    invalid(
        "json-010/bom",
        b"\xef\xbb\xbf" + body({"r": REFUND}),
        [0],
        "the body starts with a byte order mark, which JSON does not allow",
        "json_invalid",
        "The collection says 400; " + ONE_RULE,
    ),
    Case(id="json-010/bom-inside", body=raw_state('"\\ufeff at the start of the text"')),
    *(
        invalid(f"json-001/repeated-{name}", body, loc, f"the key '{key}' appears twice in one object", "repeated_key")
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
            ("state-key", raw_state('{"a":{"b":1,"b":2}}'), ["state", "a", "b"], "b"),
            ("state", b'{"state":"one","questions":{},"state":"two"}', ["state"], "state"),
        )
    ),
)

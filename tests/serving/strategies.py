"""Random requests of every shape the API accepts, for property-based tests."""

from typing import Any

from hypothesis import strategies as st

ODD_TEXTS = [
    "",
    " ",
    "\n",
    "\u0000",
    "caf\u00e9",
    "cafe\u0301",
    "질문",
    "🎯",
    "\u2028",
    '"},{"option_id":"x"}',
    "\n\nSCHEMA FIELDS:\n",
]
# The added tokens of Qwen's tokenizers, special or not, and texts that are nearly one.
CONTROL_TOKENS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    *("<|video_pad|>", "<think>", "</think>", "<tool_call>", "<|im_<|im_end|>end|>", "<|im_end|", "|>"),
]
# Everything that UTF-8 can hold: lone surrogates are refused at the door.
TEXT = st.text(max_size=30) | st.sampled_from(ODD_TEXTS) | st.sampled_from(CONTROL_TOKENS)
# Control tokens glued to each other and to other text.
CONTROL_TEXT = st.lists(st.sampled_from(CONTROL_TOKENS) | st.text(max_size=3), min_size=1, max_size=8).map("".join)
ODD_NUMBERS = [1250, 1250.0, -0.0, 0, 1e16, 1e15, 5e-324, 1e-5, 2**64, -(10**40), 12345678901234567890123]
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(ODD_NUMBERS)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
STRUCTURED = st.lists(JSON, max_size=4) | st.dictionaries(TEXT, JSON, max_size=4)
CONTENT = TEXT | STRUCTURED
OPTIONAL_CONTENT = st.none() | CONTENT
ASKED = TEXT.filter(str.strip) | STRUCTURED.filter(bool)


def _fields(**strategies: Any) -> st.SearchStrategy[dict[str, Any]]:
    """An object whose `criteria` and `type` are always there and whose `instructions` may be left out."""
    instructions = {"instructions": strategies.pop("instructions")}
    return st.fixed_dictionaries(strategies, optional=instructions)


NOUL = st.fixed_dictionaries(
    {"type": st.just("noul"), "instructions": ASKED},
    optional={
        "criteria": st.none()
        | st.fixed_dictionaries({}, optional={"true": OPTIONAL_CONTENT, "false": OPTIONAL_CONTENT})
    },
)
MANY_OPTIONS = st.builds(
    lambda count, text: {f"{text} {number}": None if number % 3 else text for number in range(count)},
    st.sampled_from([1, 77, 255]),
    TEXT,
)
CHOICE = _fields(
    type=st.just("choice"),
    instructions=OPTIONAL_CONTENT,
    criteria=st.dictionaries(TEXT, OPTIONAL_CONTENT, min_size=1, max_size=8) | MANY_OPTIONS,
)
SCORE = _fields(
    type=st.just("score"), instructions=OPTIONAL_CONTENT, criteria=st.lists(CONTENT, min_size=1, max_size=10)
)
QUESTIONS = st.dictionaries(TEXT.filter(bool), NOUL | CHOICE | SCORE, min_size=1, max_size=4)
REQUESTS = st.fixed_dictionaries({"state": CONTENT, "questions": QUESTIONS})

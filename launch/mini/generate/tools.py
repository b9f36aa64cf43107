"""Tool calls: which tool an assistant must call for what its user says."""

from typing import Any

from launch.mini.generate.asked import Asked, choice, noul, record
from launch.mini.generate.draw import Draw
from launch.mini.generate.routing import offered
from launch.mini.generate.text import filled, framed, joined
from launch.mini.generate.topics import TOOLS, UNSEEN_TOOLS

_NAMES = ("tool", "call", "function", "action", "next_tool")
_ASKS = (
    "Which tool should be called?",
    "Which tool does the assistant need?",
    "Choose the function to call.",
    "What should the assistant do next?",
    "Pick the tool for this request.",
)
_CHAT = (
    "Good morning",
    "Hello there",
    "I am at home now",
    "It is late already",
    "My name is {person}",
    "You helped me well yesterday",
    "I am in {city} this week",
    "Thanks in advance",
)


def tool(draw: Draw, identity: str, *, unseen: bool) -> dict[str, Any]:
    """One user's message with 1 or 2 questions about it."""
    topics = UNSEEN_TOOLS if unseen else TOOLS
    right = draw.of(topics)
    options, answer = offered(draw, topics, right, most=24, described=1.0 if unseen else 0.75)
    asked: list[Asked] = [choice(draw, _NAMES, _ASKS, options, answer)]
    said = [filled(draw, one) for one in draw.sample(_CHAT, draw.number(3))]
    text = joined(draw, [draw.of(right.sentences), *said], draw.number(2))
    others = [topic for topic in topics if topic is not right]
    offered_topic = right if draw.chance(0.5) else draw.of(others)
    if draw.chance(0.5):
        name = draw.of(offered_topic.names)
        about = draw.of(offered_topic.descriptions)
        asked.append(
            noul(
                draw,
                ("needs_tool", "tool_fits", "call_it"),
                (
                    f"Should the tool {name.replace(' ', '_')} be called? It {about}."
                    if not unseen
                    else f"Does the user need a tool that {about}?",
                    f"Does the user need a tool that {about}?",
                ),
                offered_topic is right,
            )
        )
    state: Any = text
    style = draw.number(4)
    if style == 0:
        state = {"user": text}
    elif style == 1:
        state = [{"role": "user", "content": text}]
    elif style == 2:
        state = framed(draw, text)
    return record(draw, identity, state, asked)

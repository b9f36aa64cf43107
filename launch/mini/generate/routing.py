"""Choices over tables of topics: which options are offered, under which name, with or without a description."""

from collections.abc import Sequence

from launch.mini.generate.asked import styled
from launch.mini.generate.draw import Draw
from launch.mini.generate.topics import Topic


def offered(
    draw: Draw, topics: Sequence[Topic], right: Topic, *, most: int, described: float
) -> tuple[dict[str, str | None], str]:
    """Options by name with their descriptions, and the right one's name.

    Args:
        described: the probability that options have descriptions at all; one in eight of those has none then.
    """
    count = draw.between(2, min(most, len(topics)))
    if draw.chance(0.85):
        count = min(count, draw.between(2, 7))
    others = draw.sample([topic for topic in topics if topic is not right], count - 1)
    with_descriptions = draw.chance(described)
    style = draw.number(1000)
    options: dict[str, str | None] = {}
    answer = ""
    for topic in draw.shuffled([right, *others]):
        name = styled(Draw(f"{style}"), draw.of(topic.names))
        if name in options:
            continue
        hidden = described < 1 and draw.chance(0.125)
        options[name] = draw.of(topic.descriptions) if with_descriptions and not hidden else None
        if topic is right:
            answer = name
    if not answer:
        answer = styled(Draw(f"{style}"), right.names[0])
        options[answer] = draw.of(right.descriptions)
    if draw.chance(0.08) and "other" not in options:
        options["other"] = draw.of((None, "none of the others", "anything else"))
    return options, answer

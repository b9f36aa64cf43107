"""Ordered scales: phrases of seven grades, and lists of levels in words that the grades are mapped onto.

Tables only. A list of n levels has one string of seven digits: the level of each grade, or `-` where the grade lies between
two levels and is not used with this list.
"""

from dataclasses import dataclass

from launch.mini.generate.asked import Asked, score
from launch.mini.generate.draw import Draw


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What is scaled: ids, instructions, phrases from the lowest grade to the highest, and lists of levels."""

    names: tuple[str, ...]
    instructions: tuple[str, ...]
    grades: tuple[tuple[str, ...], ...]
    levels: tuple[tuple[str, str], ...]  # the levels, separated by commas, and the level of each grade

    def ask(self, draw: Draw, grade: int) -> Asked | None:
        """A score question about a text of this grade; None where every drawn list leaves the grade out."""
        usable = [(words, places) for words, places in self.levels if places[grade] != "-"]
        if not usable:
            return None
        words, places = draw.of(usable)
        return score(draw, self.names, self.instructions, words.split(","), int(places[grade]))

    def phrase(self, draw: Draw, grade: int) -> str:
        return draw.of(self.grades[grade])


def _grades(text: str) -> tuple[tuple[str, ...], ...]:
    grades = tuple(tuple(part.strip() for part in line.split(";")) for line in text.strip().splitlines())
    assert len(grades) == 7
    return grades


URGENCY = Scale(
    names=("urgency", "priority", "how_urgent", "prio"),
    instructions=(
        "How urgent is the request?",
        "Rate the urgency.",
        "How soon is an answer needed?",
        "Urgency of this message",
        "How quickly must somebody act?",
    ),
    grades=_grades("""
        There is no hurry at all; Take all the time you need; This is not urgent in any way; Only for your information, nothing to do
        No hurry, some time this month is fine; Whenever you find the time; It can wait a few weeks
        A reply in the next days would be nice; Please look at it next week; Some day this week is early enough
        Please answer within two days; We would like to have it by Thursday; An answer in a day or two would help
        We need it by tomorrow; Please answer today if you can; It should be done by tomorrow noon
        This is urgent, please act today; We need help within hours; Please act in the next hour
        This is an emergency, act at once; Everything stands still, help us right now; Drop everything else, we need you immediately
    """),
    levels=(
        ("low,medium,high", "00-1-22"),
        ("can wait,soon,now", "00-1-22"),
        ("not urgent,normal,urgent,emergency", "001-223"),
        ("none,low,medium,high", "0012-33"),
        ("no hurry,this month,this week,in two days,tomorrow,within hours,immediately", "0123456"),
        ("very low,low,medium,high,very high", "0112-34"),
    ),
)
TONE = Scale(
    names=("tone", "firmness", "how_firm", "sender_tone"),
    instructions=(
        "How firm is the sender's tone?",
        "How firm is the tone?",
        "Rate the tone of the letter.",
        "How strict does the sender sound?",
        "Which tone does the writer take?",
    ),
    grades=_grades("""
        Thank you so much for working with us, we are always happy to help; Warm greetings and thank you for your kindness; It is a joy to work with you
        Thank you for your order, kind regards; With kind regards and thanks; We hope that you like the goods
        Please find the invoice attached; The details are listed above; Attached you find the document
        Please note that the payment is due soon; We kindly remind you of the due date; This is a short note on the payment date
        Reminder: we have still not received any payment; We must ask you to pay now; Second reminder: please settle this without further delay; We expect your payment at once
        This is our final reminder and we will not wait any longer; Last notice: we insist on payment within five days; We will accept no further delay
        We will take you to court; Our lawyers will act against you; If you do not pay we will sue you; You will hear from our lawyers and it will be expensive
    """),
    levels=(
        ("friendly,neutral,firm,threatening", "001-223"),
        ("friendly,neutral,firm,threatening", "001-2-3"),
        ("polite,firm,threatening", "00--1-2"),
        ("warm,friendly,neutral,reminding,firm,insisting,threatening", "0123456"),
        ("friendly,neutral,strict", "001--22"),
        ("very friendly,friendly,neutral,firm,hostile", "012-3-4"),
    ),
)
SATISFACTION = Scale(
    names=("satisfaction", "mood", "sentiment", "happiness"),
    instructions=(
        "How satisfied is the customer?",
        "Rate the mood of the writer.",
        "What is the sentiment?",
        "How happy does the customer sound?",
    ),
    grades=_grades("""
        I am furious, this is a disgrace; This is outrageous and I have never been so angry; I hate your service
        I am very disappointed; I am angry about this; This is really bad service
        I am not happy with this; It is a bit annoying; I expected more than this
        I have no complaint and no praise; It is all right, neither good nor bad; I simply state the facts
        I am fairly content; It works well enough; I am quite pleased so far
        I am happy with your service; Good work; We are very pleased
        I am delighted, you are wonderful; The best service I ever had; I love it, perfect in every way
    """),
    levels=(
        ("angry,neutral,happy", "00-1-22"),
        ("negative,neutral,positive", "0001222"),
        ("furious,unhappy,neutral,content,delighted", "01123-4"),
        ("very unsatisfied,unsatisfied,neutral,satisfied,very satisfied", "0112344"),
        ("furious,angry,annoyed,neutral,content,happy,delighted", "0123456"),
        ("bad,mixed,good,excellent", "00-1-23"),
    ),
)
SEVERITY = Scale(
    names=("severity", "impact", "how_severe", "sev"),
    instructions=(
        "How severe is it?",
        "Rate the severity.",
        "How bad is the impact?",
        "Severity of the alert",
        "How serious is this?",
    ),
    grades=_grades("""
        No impact at all; Nothing is affected; The alert cleared by itself; It is only a test alert
        A cosmetic issue, nobody noticed; Users see no difference; One spare part of many is affected
        A minor issue, a few requests are slower; A small share of users waits a little longer; Minor errors on one page
        Some users see errors; A part of the service is slow; Several customers report failures
        The service is degraded and will get worse soon; Half of the requests fail; Many users cannot work properly
        An outage is expected within hours; It will run out completely before morning; In two hours everything will stop
        The whole service is down for everybody; A total outage in all regions; Nothing works and data is being lost
    """),
    levels=(
        ("no impact,minor,service degraded soon,outage within hours", "011-233"),
        ("low,medium,high", "00-1-22"),
        ("none,low,medium,high,critical", "0112334"),
        ("no impact,cosmetic,minor,some users affected,degraded,outage soon,total outage", "0123456"),
        ("harmless,moderate,severe,critical", "001-2-3"),
        ("info,warning,error,critical", "00-1-23"),
    ),
)
ALL_SCALES = (URGENCY, TONE, SATISFACTION, SEVERITY)

"""Yes/no facts that a text states, denies or leaves out: tables of ids, instructions and phrases. Knows no domain.

A phrase that denies uses the words of the fact on purpose, so that finding the words is not enough.
"""

from dataclasses import dataclass

from launch.mini.generate.asked import Asked, noul
from launch.mini.generate.draw import Draw


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One thing that is so or not."""

    names: tuple[str, ...]
    instructions: tuple[str, ...]
    stated: tuple[str, ...]
    denied: tuple[str, ...]

    def draw(self, draw: Draw) -> tuple[Asked, str | None]:
        """A question, and the sentence that decides it; none in half of the texts where the fact is not so."""
        if draw.chance(0.5):
            return noul(draw, self.names, self.instructions, True), draw.of(self.stated)
        sentence = draw.of(self.denied) if draw.chance(0.5) else None
        return noul(draw, self.names, self.instructions, False), sentence


def _table(text: str) -> tuple[Fact, ...]:
    facts = []
    for line in text.strip().splitlines():
        names, asks, stated, denied = (tuple(part.strip() for part in cell.split(";")) for cell in line.split("|"))
        facts.append(Fact(names=names, instructions=asks, stated=stated, denied=denied))
    return tuple(facts)


FACTS = _table("""
refund_asked;wants_refund;refund | Does the customer ask for a refund?;Is a refund requested?;Do they want their money back?;The customer wants a refund. | Please refund me;I want my money back;Return the amount to my account please;I ask for a full refund;A refund would be fair | I do not want a refund;I am not asking for my money back;No refund is needed;Keep the money, a refund is not necessary
callback;call_back;wants_call | Does the customer want to be called?;Is a phone call requested?;Should somebody call back? | Please call me;Can you ring me back;I would like a phone call;Give me a call when you know more | Please do not call me;No phone calls, write instead;You need not call me;A call is not needed
cancels;wants_to_cancel;leaving | Does the customer want to cancel?;Is the customer leaving?;Does the writer end the contract? | I hereby cancel my contract;Please cancel my plan;I want to leave and end the contract;We cancel the order | I do not want to cancel;We are not leaving;I keep my contract;Please do not cancel anything
legal_threat;threatens;lawyer | Does the writer threaten legal action?;Are lawyers mentioned as a threat?;Will they go to court? | Otherwise I will go to court;My lawyer will write to you;We will take legal action;We will sue you | I have no wish to go to court;We will not involve lawyers;No legal action is planned
attachment;file_attached | Is something attached?;Does the message have an attachment?;Are files attached? | I have attached a photo;See the attached file;Two files are attached;The attachment shows it | I have attached nothing;There is no attachment;I could not attach the photo
resolved;solved;fixed | Is the problem solved?;Has it been resolved?;Is the issue fixed by now? | It works again now;The problem is solved;It has been fixed;All is well again since this morning | It is still not solved;The problem has not been fixed;It does not work yet;Nothing has been resolved
discount;asks_discount;price_reduction | Does the customer ask for a discount?;Is a lower price requested?;Do they want a reduction? | Can you give us a discount;We ask for a lower price;A reduction of ten percent would be fair;Please make it cheaper | We do not ask for a discount;The price is fine as it is;No reduction is needed
""")

DISTRACTORS = (
    "I hope that you are well",
    "We moved to a new office last year",
    "The weather here is lovely",
    "My colleague {person} is back from holiday",
    "We read your last newsletter",
    "Our shop opens at nine",
    "I write from my phone",
    "{person} says hello",
    "We have 12 people in the office",
    "The parking place is behind the house",
    "It has been a long week",
    "Our reference is {number}",
    "I am at the office until five",
    "The number on the form is {number}",
    "Please excuse my late answer",
    "{company} recommended you to us",
    "We met at the fair in {city}",
    "Kind regards, {person}",
    "Best wishes from {city}",
    "I copied {person} on this message",
)

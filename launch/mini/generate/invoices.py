"""Invoices: their status, whether they are overdue, whether the total is above a bound, the sender's tone."""

from dataclasses import dataclass
from typing import Any

from launch.mini.generate import values
from launch.mini.generate.asked import Asked, choice, noul, record
from launch.mini.generate.draw import Draw
from launch.mini.generate.facts import FACTS
from launch.mini.generate.numbers import bound_asked, near
from launch.mini.generate.routing import offered
from launch.mini.generate.scales import TONE
from launch.mini.generate.text import filled
from launch.mini.generate.topics import STATUSES, UNSEEN_STATUSES, Topic

_NAMES = ("status", "invoice_status", "state", "payment_status")
_ASKS = (
    "What is the status of the invoice?",
    "What is the invoice's status?",
    "In which state is the invoice?",
    "Status of this invoice",
    "Where does the payment stand?",
)
_OVERDUE_NAMES = ("overdue", "late", "is_overdue", "past_due", "payment_overdue")
_OVERDUE_ASKS = (
    "Is the payment overdue?",
    "Is the invoice overdue?",
    "Is the payment late?",
    "Is the due date past without payment?",
    "The invoice is overdue.",
)
_BOUNDS = (500, 1000, 2000, 2500, 5000, 5000, 7500, 10000, 20000)
_WORDS_FOR_TOTAL = ("total", "amount", "invoice total", "sum")
_FACTS = tuple(fact for fact in FACTS if fact.names[0] in ("discount", "callback"))
_PAID, _UNPAID, _PARTLY = STATUSES[:3]
_FIRM = 4  # the grade of TONE


@dataclass(frozen=True, kw_only=True)
class _Paper:
    """What an invoice says, however it is written: `today` is the day of its remarks, which may be a reminder."""

    remarks: list[str]
    cents: int
    currency: str
    issued: values.Day
    due: values.Day
    today: values.Day
    reminds: bool


def invoice(draw: Draw, identity: str, *, unseen: bool) -> dict[str, Any]:
    """One invoice with 1 to 5 questions about it."""
    topics = UNSEEN_STATUSES if unseen else STATUSES
    status = draw.of(topics) if unseen or draw.chance(0.5) else draw.of((_PAID, _UNPAID, _UNPAID, _PARTLY))
    bound = draw.of(_BOUNDS)
    cents = near(draw, bound)
    issued = values.Day(draw.number(250))
    due = issued.later(draw.of((14, 28, 30, 45)))
    # Of an invoice that is owed the text is dated after the due day, or clearly before it.
    late = draw.chance(0.6)
    written = due.later(draw.between(6, 40)) if late else issued.later(draw.between(1, 9))
    asked: list[Asked] = []
    options, answer = offered(draw, topics, status, most=9, described=1.0 if unseen else 0.75)
    asked.append(choice(draw, _NAMES, _ASKS, options, answer))
    what = draw.of(_WORDS_FOR_TOTAL)
    currency = draw.of(values.CURRENCIES)
    asked.append(bound_asked(draw, what, currency, cents, bound))
    if status in (_PAID, _UNPAID, _PARTLY):
        asked.append(noul(draw, _OVERDUE_NAMES, _OVERDUE_ASKS, late and status is not _PAID))
    grade = draw.of((_FIRM, _FIRM, 5, 6, 2, 3)) if status in (_UNPAID, _PARTLY) and late else draw.number(4)
    tone = TONE.ask(draw, grade) if draw.chance(0.5) else None
    remarks = [_remark(draw, status, written, cents)]
    if tone is not None:
        asked.append(tone)
        # A reminder of an unpaid invoice is firm without more words.
        if not (grade == _FIRM and status is _UNPAID and draw.chance(0.6)):
            remarks.append(TONE.phrase(draw, grade))
    if draw.chance(0.3):
        one, sentence = draw.of(_FACTS).draw(draw)
        asked.append(one)
        if sentence is not None:
            remarks.append(filled(draw, sentence))
    remarks = draw.shuffled(remarks)
    make = _as_json if draw.chance(0.35) else _as_text
    paper = _Paper(
        remarks=remarks,
        cents=cents,
        currency=currency,
        issued=issued,
        due=due,
        today=written,
        reminds=late and status in (_UNPAID, _PARTLY),
    )
    return record(draw, identity, make(draw, paper), asked)


def _remark(draw: Draw, status: Topic, written: values.Day, cents: int) -> str:
    sentence = filled(draw, draw.of(status.sentences))
    part = values.amount_text(draw, int(cents * draw.real(0.1, 0.6)))
    return sentence.replace("{later}", written.written(0)).replace("{part}", part)


def _as_text(draw: Draw, paper: _Paper) -> str:
    seller, buyer, date = values.company(draw), values.company(draw), draw.number(3)
    number = f"INV-{draw.between(100, 9999)}"
    total = values.amount_text(draw, paper.cents)
    lines = []
    if draw.chance(0.4):
        lines.append(f"From: {draw.of(('accounts', 'billing', 'office'))}@{values.domain(seller)}")
    lines.append(
        draw.of(
            (
                f"Invoice {number} from {seller} to {buyer}, issued {paper.issued.written(date)}, due {paper.due.written(date)}.",
                f"Invoice {number}\nSeller: {seller}\nBuyer: {buyer}\nIssued: {paper.issued.written(date)}\nDue: {paper.due.written(date)}",
                f"{seller} billed {buyer} on {paper.issued.written(date)}. Due date: {paper.due.written(date)}. Invoice {number}.",
            )
        )
    )
    if draw.chance(0.6):
        extra = int(paper.cents * draw.real(0.03, 0.3))
        items = (values.amount_text(draw, paper.cents - extra), values.amount_text(draw, extra))
        other = draw.of(("Fuel surcharge", "Packing", "Handling", "Insurance", "VAT"))
        lines.append(
            f"{values.goods(draw)}: {items[0]} {paper.currency}. {other}: {items[1]} {paper.currency}. Total: {total} {paper.currency}."
        )
    else:
        lines.append(
            draw.of(
                (
                    f"Total: {total} {paper.currency}.",
                    f"The total is {total} {paper.currency}.",
                    f"Amount: {total} {paper.currency}",
                )
            )
        )
    opening = (
        draw.of((f"Reminder of {paper.today.written(date)}: ", f"Reminder, {paper.today.written(date)}. "))
        if paper.reminds
        else ""
    )
    if not opening:
        opening = draw.of(
            (
                f"Note of {paper.today.written(date)}: ",
                f"{paper.today.written(date)}: ",
                f"Today is {paper.today.written(date)}. ",
            )
        )
    said = [one.rstrip(".") + "." for one in paper.remarks]
    if draw.chance(0.5):
        said[0] = said[0][0].lower() + said[0][1:]
    lines.append(opening + " ".join(said))
    return "\n".join(lines)


def _as_json(draw: Draw, paper: _Paper) -> dict[str, Any]:
    fields: dict[str, Any] = {
        draw.of(("total", "amount", "invoice_total")): values.amount_number(paper.cents)
        if draw.chance(0.7)
        else values.amount_text(draw, paper.cents),
        "currency": paper.currency,
        "due": paper.due.written(2),
        "today": paper.today.written(2),
        draw.of(("note", "remark", "message")): ". ".join(paper.remarks) + ".",
    }
    if draw.chance(0.7):
        fields["issued"] = paper.issued.written(2)
    if draw.chance(0.6):
        fields["seller"] = values.company(draw)
    if draw.chance(0.6):
        fields["number"] = f"INV-{draw.between(100, 9999)}"
    if paper.reminds and draw.chance(0.7):
        fields["reminders"] = draw.between(1, 3)
    return {"invoice": fields} if draw.chance(0.25) else fields

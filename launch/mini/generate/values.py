"""Invented companies, people, hosts, dates and amounts of money. Knows nothing of questions."""

from dataclasses import dataclass

from launch.mini.generate.draw import Draw

_STARTS = "Hal Nor Brun Tide Vel Kes Mar Ox Pine Sol Grey Lun Aster Quar Fen Wil Tor Ash Cor Dun El Fal Gar Hel Ister Jor".split()
_ENDS = "den wick water ton field by mark low stead mere ford vik crest holm dale berg stone haven well rick".split()
_TRADES = (
    "Freight,Tools,Ceramics,Foods,Textiles,Dental,Robotics,Optics,Logistics,Energy,Travel,Paper,Motors,Glass,Garden,"
    "Bakery,Software,Print,Timber,Marine,Metals,Clinics,Furniture,Studios"
).split(",")
PEOPLE = (
    "Ana Bela Chidi Dara Emre Farah Goran Hana Ines Jonas Kaya Lior Mina Noor Olek Petra Rafi Sana Tomas Uma Vera Wren Yara Zoe"
).split()
_CITIES = "Bergen Hull Lyon Porto Gdansk Turin Malmo Ghent Graz Cork Split Varna Tampere Lugo Brno Aarhus".split()
_MONTHS = "January February March April May June July August September October November December".split()
CURRENCIES = ("EUR", "EUR", "EUR", "USD", "GBP", "CHF")
_GOODS = "pallets,crates,boxes,wool blankets,torque wrenches,lens kits,servo motors,oil cans,desk lamps,steel pipes,tiles".split(
    ","
)


def company(draw: Draw) -> str:
    return f"{draw.of(_STARTS)}{draw.of(_ENDS)} {draw.of(_TRADES)}"


def domain(company_name: str) -> str:
    return company_name.lower().replace(" ", "-") + ".example"


def person(draw: Draw) -> str:
    return draw.of(PEOPLE)


def city(draw: Draw) -> str:
    return draw.of(_CITIES)


def goods(draw: Draw) -> str:
    return f"{draw.between(2, 60)} {draw.of(_GOODS)}"


@dataclass(frozen=True, order=True)
class Day:
    """A day of a year of twelve months of 28 days, which every real year has."""

    number: int

    def later(self, days: int) -> "Day":
        return Day(min(max(self.number + days, 0), 12 * 28 - 1))

    def written(self, style: int) -> str:
        month, day = divmod(self.number, 28)
        if style == 0:
            return f"{day + 1} {_MONTHS[month]}"
        if style == 1:
            return f"{_MONTHS[month]} {day + 1}"
        return f"2026-{month + 1:02}-{day + 1:02}"


def amount_text(draw: Draw, cents: int) -> str:
    """`6,592.50`, or `6,592` for a whole amount."""
    whole, rest = divmod(cents, 100)
    return f"{whole:,}.{rest:02}" if rest or draw.chance(0.5) else f"{whole:,}"


def amount_number(cents: int) -> float:
    """6592.5, or 6592 for a whole amount, as JSON writes them."""
    return cents // 100 if cents % 100 == 0 else cents / 100

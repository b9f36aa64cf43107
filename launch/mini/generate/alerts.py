"""Infrastructure alerts: how severe, whether to page someone, which team.

The severity follows from two things the alert holds: how far the measure has gone, and how much depends on the machine.
"""

from dataclasses import dataclass
from typing import Any

from launch.mini.generate import values
from launch.mini.generate.asked import Asked, choice, noul, record
from launch.mini.generate.draw import Draw
from launch.mini.generate.numbers import bound_asked
from launch.mini.generate.routing import offered
from launch.mini.generate.scales import SEVERITY
from launch.mini.generate.text import joined
from launch.mini.generate.topics import TEAMS, UNSEEN_TEAMS, Topic

_BY_NAME = {topic.names[0]: topic for topic in TEAMS}
_OPERATIONS = tuple(
    _BY_NAME[name]
    for name in "database network application platform storage mail payments identity security telephony mobile warehouse".split()
    if name in _BY_NAME
)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    team: str
    alerts: tuple[str, ...]
    hosts: tuple[str, ...]
    measures: tuple[str, ...]  # keys of a percentage, the higher the worse
    roles: tuple[str, ...]  # what the machine is; "{}" says how much depends on it
    details: tuple[tuple[str, str], ...]


_KINDS = (
    _Kind(team="database", alerts=("DiskFillingUp", "DatabaseDiskFull", "TablespaceNearlyFull"), hosts=("db", "pg", "sql"), measures=("used_percent", "disk_used_percent"), roles=("primary database", "orders database", "customer database"), details=(("mount", "/var/lib/postgresql"), ("mount", "/srv/mysql"), ("engine", "postgresql"))),
    _Kind(team="database", alerts=("ReplicationLag", "SlowQueries", "ConnectionsExhausted"), hosts=("db", "pg", "replica"), measures=("connections_used_percent", "lag_percent_of_limit"), roles=("database", "ledger database", "stock database"), details=(("engine", "mysql"), ("engine", "postgresql"), ("table", "orders"))),
    _Kind(team="network", alerts=("PacketLoss", "LinkSaturated", "RouterOverload"), hosts=("router", "switch", "lb"), measures=("loss_percent", "link_used_percent"), roles=("router", "load balancer", "link between two sites"), details=(("interface", "eth0"), ("vlan", "12"), ("peer", "site-2"))),
    _Kind(team="application", alerts=("CheckoutErrors", "SlowPages", "ErrorRateHigh"), hosts=("web", "shop", "front"), measures=("error_percent", "failed_requests_percent"), roles=("web shop", "checkout page", "search page"), details=(("path", "/checkout"), ("path", "/login"), ("service", "web shop"))),
    _Kind(team="platform", alerts=("NodeNotReady", "PodsPending", "NodeMemoryHigh"), hosts=("node", "k8s", "worker"), measures=("memory_used_percent", "cpu_used_percent"), roles=("cluster node", "container host", "scheduler node"), details=(("cluster", "prod-2"), ("namespace", "core"), ("pods", "pending"))),
    _Kind(team="storage", alerts=("FileServerFull", "SnapshotSpaceLow", "BackupVolumeFull"), hosts=("nas", "file", "backup"), measures=("used_percent", "volume_used_percent"), roles=("file server", "backup server", "snapshot store"), details=(("mount", "/export/home"), ("mount", "/backup"), ("job", "nightly backup"))),
    _Kind(team="mail", alerts=("MailQueueGrowing", "SpamFilterDown", "MailboxStoreFull"), hosts=("mx", "mail", "smtp"), measures=("queue_used_percent", "mailbox_used_percent"), roles=("mail server", "mail gateway", "mailbox store"), details=(("queue", "outgoing"), ("queue", "deferred"), ("protocol", "smtp"))),
)  # fmt: skip
_ALONE = (
    "no standby",
    "no replica",
    "no spare",
    "the only one",
    "nothing takes over",
    "single instance",
    "not redundant",
)
_SPARE = ("standby takes over", "one of six", "two spares", "redundant", "replicas take over", "a spare is ready")
_TEST = ("test system", "staging, no users", "development only", "used for tests", "not in production")
# The grade of SEVERITY by what depends on the machine and by how far the measure has gone: low, raised, nearly full, full.
_GRADES = {_TEST: (0, 0, 0, 0), _SPARE: (1, 2, 3, 3), _ALONE: (2, 4, 5, 6)}
_BANDS = ((25, 74), (80, 89), (93, 99), (100, 100))
_PAGE_NAMES = ("page_someone", "page", "wake_up", "page_on_call", "needs_page")
_PAGE_ASKS = (
    "Should someone be woken up for this?",
    "Should the engineer on call be paged?",
    "Does somebody have to act tonight?",
    "Must someone be called now?",
    "Page someone for this alert.",
)
_TEAM_NAMES = ("team", "owner", "on_call_team", "assign_to")
_TEAM_ASKS = (
    "Which team should handle it?",
    "Who should look at the alert?",
    "Which team is on call for this?",
    "Assign the alert to a team.",
)
_PAGED_FROM, _NOT_PAGED_TO = 5, 3  # a grade in between is not asked about


def alert(draw: Draw, identity: str, *, unseen: bool, bare: bool = False) -> dict[str, Any]:
    """One alert with 1 to 5 questions about it.

    Args:
        bare: its name, host and role say nothing of the team, a sentence does; as always where options are unseen.
    """
    bare = bare or unseen
    kind, dependence = draw.of(_KINDS), draw.of((_TEST, _SPARE, _ALONE, _ALONE))
    band = draw.of((0, 1, 2, 2, 3) if dependence is _ALONE else (0, 1, 2, 3))
    grade = _GRADES[dependence][band]
    used = draw.between(*_BANDS[band])
    measure = draw.of(kind.measures)
    topics: tuple[Topic, ...] = UNSEEN_TEAMS if unseen else _OPERATIONS
    topic = draw.of(topics) if bare else _BY_NAME[kind.team]
    options, answer = offered(draw, topics, topic, most=12, described=1.0 if unseen else 0.7)
    asked: list[Asked] = [choice(draw, _TEAM_NAMES, _TEAM_ASKS, options, answer)]
    severity = SEVERITY.ask(draw, grade)
    if severity is not None:
        asked.append(severity)
    if not _NOT_PAGED_TO < grade < _PAGED_FROM:
        asked.append(noul(draw, _PAGE_NAMES, _PAGE_ASKS, grade >= _PAGED_FROM))
    if draw.chance(0.4):
        bound = draw.of([one for one in (50, 75, 80, 90, 95) if abs(one - used) > 2])
        asked.append(bound_asked(draw, measure.replace("_", " "), "percent", used * 100, bound))
    role = draw.of((f"{draw.of(kind.roles)}, {draw.of(dependence)}", f"{draw.of(kind.roles)} ({draw.of(dependence)})"))
    if bare:
        role = draw.of(dependence)
    hint = draw.of(topic.sentences) if bare or draw.chance(0.2) else None
    make = _as_json if draw.chance(0.6) else _as_text
    return record(draw, identity, make(draw, kind, measure, used, role, hint, bare), asked)


def _host(draw: Draw, kind: _Kind, bare: bool) -> str:
    prefix = "host" if bare else draw.of(kind.hosts)
    return f"{prefix}-{draw.between(1, 40):02}.{values.domain(values.company(draw))}"


def _as_json(
    draw: Draw, kind: _Kind, measure: str, used: int, role: str, hint: str | None, bare: bool
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "alert": "Alert" if bare else draw.of(kind.alerts),
        "host": _host(draw, kind, bare),
        measure: used,
        "role": role,
    }
    if hint is not None:
        fields[draw.of(("message", "note", "summary"))] = hint
    if draw.chance(0.6):
        fields["local_time"] = f"{draw.number(24):02}:{draw.number(60):02}"
    if "used" in measure and draw.chance(0.6):
        fields["free_gb"] = 0 if used == 100 else max(1, (100 - used) * draw.between(2, 6))
        fields["growth_gb_per_hour"] = draw.between(1, 80) / 10
    if not bare:
        for key, value in draw.sample(kind.details, draw.between(0, 2)):
            fields[key] = value
    if draw.chance(0.3):
        fields["site"] = values.city(draw)
    return {"labels": fields, "status": "firing"} if draw.chance(0.15) else fields


def _as_text(draw: Draw, kind: _Kind, measure: str, used: int, role: str, hint: str | None, bare: bool) -> str:
    name = "Alert" if bare else draw.of(kind.alerts)
    said = measure.removesuffix("_percent").replace("_", " ").replace(" percent of limit", " of the limit")
    sentences = [
        f"{name} on {_host(draw, kind, bare)}",
        draw.of((f"{used} percent {said}", f"{said.capitalize()} is at {used}%", f"{measure}={used}")),
        draw.of((f"It is a {role}", f"Role: {role}", role)),
    ]
    if hint is not None:
        sentences.append(hint)
    if draw.chance(0.4):
        sentences.append(f"Local time {draw.number(24):02}:{draw.number(60):02}")
    return joined(draw, sentences, draw.number(2))

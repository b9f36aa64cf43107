"""Objects of other projects have the shape that those projects' definitions give them: every field known, of its type."""

import copy
import re
from typing import Any

import jsonschema
import pytest
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator

from tests.k8s.chart import Helm, Object
from tests.k8s.variants import VARIANTS

# Of the Gateway API's HTTPRoute (standard channel, v1) the fields that the chart sets; a name that is not here is a typo.
NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def some(items: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "maxItems": most, "items": items}


PATH = closed(["type", "value"], type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value={"pattern": "^/"})
BACKEND = closed(["name", "port"], name=NAME, port={"type": "integer", "minimum": 1, "maximum": 65535})
HEADER = closed(
    ["name", "value"], type={"enum": ["Exact", "RegularExpression"]}, name={"type": "string"}, value={"type": "string"}
)
# GEP-2257.
DURATION = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
RULE = closed(
    ["matches", "backendRefs"],
    matches=some(closed(["path"], path=PATH, headers=some(HEADER, 16)), 64),
    backendRefs=some(BACKEND, 16),
    timeouts=closed([], request=DURATION, backendRequest=DURATION),
)
PARENT = closed(["name"], group={}, kind={}, namespace=NAME, name=NAME, sectionName=NAME, port={"type": "integer"})
HTTP_ROUTE = closed(
    ["parentRefs", "rules"], parentRefs=some(PARENT, 32), hostnames=some(NAME, 16), rules=some(RULE, 16)
)


def custom(helm: Helm, kind: str) -> list[Object]:
    """Each different object of a kind that any variant renders."""
    found = [o for values in VARIANTS.values() for o in helm.objects(values) if o["kind"] == kind]
    assert found
    return [o for number, o in enumerate(found) if o not in found[:number]]


def model(kind: str) -> Any:
    """The class that is made from the project's own definition, with pydantic."""
    return ScaledObject if kind == "ScaledObject" else getattr(prometheus_operator, kind)


def read_back(kind: str, found: Object) -> Any:
    """What the definition knows of an object: it drops fields that it does not have, and refuses those of another type."""
    return model(kind).model_validate(found).model_dump(mode="json", by_alias=True, exclude_unset=True)


@pytest.mark.parametrize("kind", ["PrometheusRule", "ScaledObject", "ServiceMonitor"])
def test_every_field_is_one_of_the_definition(helm: Helm, kind: str) -> None:
    for found in custom(helm, kind):
        assert read_back(kind, found) == found


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("ServiceMonitor", lambda spec: spec["endpoints"][0].update(pth="/metrics")),
        ("PrometheusRule", lambda spec: spec["groups"][0]["rules"][0].update({"four": "5m"})),
        ("ScaledObject", lambda spec: spec["triggers"][0].update(metricsType="AverageValue")),
    ],
)
def test_a_field_that_the_definition_does_not_have_is_seen(helm: Helm, kind: str, change: Any) -> None:
    (found, *_) = custom(helm, kind)
    wrong = {**found, "spec": copy.deepcopy(found["spec"])}
    change(wrong["spec"])
    assert read_back(kind, wrong) != wrong


def test_routes_have_the_gateway_apis_shape(helm: Helm) -> None:
    for found in custom(helm, "HTTPRoute"):
        assert found["apiVersion"] == "gateway.networking.k8s.io/v1"
        jsonschema.validate(found["spec"], HTTP_ROUTE)
    wrong = copy.deepcopy(found["spec"])
    wrong["rules"][0]["timeout"] = wrong["rules"][0].pop("timeouts")
    with pytest.raises(jsonschema.ValidationError, match=re.escape("('timeout' was unexpected)")):
        jsonschema.validate(wrong, HTTP_ROUTE)

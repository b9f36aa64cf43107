"""Whether a response is one that the OpenAPI document describes: status, media type, headers and body."""

import json
from typing import Any

import httpx
from jsonschema import Draft202012Validator


class Documented:
    """Judges responses by one document, whose schemas are read once."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._validators: dict[str, Draft202012Validator] = {}

    def check(self, method: str, path: str, response: httpx.Response) -> None:
        """Fail unless the response is described; `path` is the document's."""
        described = self._document["paths"][path][method]["responses"]
        assert str(response.status_code) in described, f"{response.status_code} is not described: {response.text}"
        self._check(described[str(response.status_code)], response)

    def check_error(self, response: httpx.Response) -> None:
        """Fail unless it is an error as every path and method that is not described has it."""
        assert response.status_code in (404, 405), response.text
        self._check({"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}}, response)

    def _check(self, described: dict[str, Any], response: httpx.Response) -> None:
        (media_type,) = described["content"]
        assert response.headers["content-type"] == media_type
        self._valid(described["content"][media_type]["schema"]["$ref"]).validate(json.loads(response.content))
        for name, header in described.get("headers", {}).items():
            shape = self._document["components"]["headers"][name]
            if name not in response.headers:
                assert not shape.get("required"), f"{response.status_code} without {name}"
                continue
            value = response.headers[name]
            is_whole = shape["schema"].get("type") == "integer"
            self._valid(f"{header['$ref']}/schema").validate(int(value) if is_whole else value)

    def _valid(self, reference: str) -> Draft202012Validator:
        if reference not in self._validators:
            schema = {"$ref": reference, "components": self._document["components"]}
            self._validators[reference] = Draft202012Validator(schema)
        return self._validators[reference]

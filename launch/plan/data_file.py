"""Reads the TOML files of this package into checked tables: a slip names its file and key. Knows no table's meaning."""

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

DIRECTORY = Path(__file__).parent


class DataFileError(ValueError):
    """A data file is missing, not TOML, or holds a key or value that its table does not have; one line a fault."""


class Table(BaseModel):
    """A table with exactly the keys it declares, each of exactly its type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


TableT = TypeVar("TableT", bound=Table)


def read_table(path: Path, table: type[TableT]) -> TableT:
    """The whole file as one table.

    Raises:
        DataFileError: see there.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataFileError(f"{path}: cannot be read as TOML: {err}") from err
    try:
        return table.model_validate(values)
    except ValidationError as err:
        faults = (f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in err.errors())
        raise DataFileError("\n".join(faults)) from err

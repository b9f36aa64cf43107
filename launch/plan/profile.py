"""A profile: what a deployment is for, as data in `profiles/*.toml`, checked against the tables below.

Knows what may stand in a profile; which server arguments follow from it, `arguments` knows.
"""

from functools import cache

from pydantic import Field, field_validator

from launch.plan.data_file import DIRECTORY, DataFileError, Table, read_table

DEFAULT_PROFILE = "throughput"
# Prompts are cut at multiples of this, or a state's checkpoint would fall between the kernel's (sglang_hooks.chunk_grid).
GRID_TOKENS = 64


class Count(Table):
    """A whole number and why it was chosen."""

    value: int = Field(gt=0)
    reason: str = Field(min_length=1)


def _on_grid(chunk: Count | None) -> Count | None:
    if chunk is not None and chunk.value % GRID_TOKENS:
        raise ValueError(f"must be a multiple of {GRID_TOKENS}, not {chunk.value}")
    return chunk


class Overrides(Table):
    """What a profile sets otherwise for one model."""

    chunk_tokens: Count | None = None
    running_requests: Count | None = None
    states_per_path: Count | None = None

    _chunk_on_grid = field_validator("chunk_tokens")(_on_grid)


class ModelOverrides(Table):
    """By the names of `models.toml`."""

    clef_flash: Overrides = Field(default=Overrides(), alias="clef-flash")
    clef: Overrides = Overrides()


class Profile(Table):
    """One file of `profiles/`.

    Attributes:
        state_tokens, schema_tokens: lengths that the pools are divided for, unless the operator gives theirs.
        chunk_tokens: the most tokens of one prefill batch.
        running_requests: at once; fewer where the memory does not allow it.
        states_per_path: SGLang's cap on the recurrent states that a cached state keeps, see `pools.Traffic`.
    """

    summary: str = Field(min_length=1)
    state_tokens: Count
    schema_tokens: Count
    chunk_tokens: Count
    running_requests: Count
    states_per_path: Count
    models: ModelOverrides = ModelOverrides()

    _chunk_on_grid = field_validator("chunk_tokens")(_on_grid)

    def for_model(self, model: str | None) -> "Profile":
        """With the overrides for a known model applied."""
        overrides = {"clef-flash": self.models.clef_flash, "clef": self.models.clef}.get(model or "")
        if overrides is None:
            return self
        changed = {name: count for name, count in overrides if count is not None}
        return self.model_copy(update=changed)


@cache
def profiles() -> dict[str, Profile]:
    """Every profile by name, the default first.

    Raises:
        DataFileError: a file is wrong; the message names it and the key.
    """
    found = {path.stem: read_table(path, Profile) for path in sorted((DIRECTORY / "profiles").glob("*.toml"))}
    if DEFAULT_PROFILE not in found:
        raise DataFileError(f"{DIRECTORY / 'profiles'}: no {DEFAULT_PROFILE}.toml")
    return {DEFAULT_PROFILE: found.pop(DEFAULT_PROFILE), **found}

"""The table of plans in `launch/plan/README.md`: every profile for four GPUs and two models. Run `python -m launch.plan.table`.

Rewrites the part of the page between the two markers; a test holds it to what this prints.
"""

import itertools
from pathlib import Path

from launch.plan.gpu import gpus
from launch.plan.model_shape import known_models
from launch.plan.plan import PlanInputs, make_plan
from launch.plan.profile import profiles

PAGE = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- plan_table: begin -->", "<!-- plan_table: end -->"


def table() -> str:
    """Markdown: a table for each profile, BF16 weights and images, one GPU."""
    blocks = []
    for name, profile in profiles().items():
        lengths = f"states of {profile.state_tokens.value:,} tokens, schemas of {profile.schema_tokens.value:,}"
        rows = [_row(gpu, model, name) for model, gpu in itertools.product(known_models(), gpus())]
        header = [
            "| model | GPU | `mem-fraction-static` | states in pool | tokens in pool | cached states | beside requests "
            "| new state, least ms | cached state, least ms |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        blocks.append("\n".join([f"**{name}**: {lengths}", "", *header, *rows]))
    return "\n\n".join(blocks)


def _row(gpu: str, model: str, profile: str) -> str:
    plan = make_plan(PlanInputs(gpu=gpu, model=model, profile=profile), with_changes=False)
    memory = plan.memory
    least = [f"{bound.least_s * 1e3:,.1f}" for _, bound in (plan.cold, plan.cached)]
    if not memory.fits or memory.pools is None:
        return f"| {model} | {gpu} | {memory.static_fraction:g} | | | does not fit | | {least[0]} | {least[1]} |"
    pools = memory.pools
    return (
        f"| {model} | {gpu} | {memory.static_fraction:g} | {pools.state_slots:,} | {pools.token_slots:,} "
        f"| {memory.cached_states:,} | {memory.running_requests} | {least[0]} | {least[1]} |"
    )


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
